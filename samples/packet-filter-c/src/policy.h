/* The policy: its text, and the rules that it becomes.
 *
 *   policy   = line...                 of which the first rule that fits a packet decides
 *   line     = rule | "default" ("allow" | "deny") | nothing      "#" starts a comment
 *   rule     = ("allow" | "deny") [protocol [ports]] ["from" net] ["from-ports" ports] ["to" net] ["established"]
 *   protocol = "tcp" | "udp" | "icmp" | number
 *   ports    = the receiver's: "80", "8000-8099", or several with commas and no spaces between
 *
 * The text is read once per chain. What remains is a list of rules for each version of IP, so that judging a packet is a walk over a few words
 * of memory, without allocation, bounded by RULES_MAX. */
#ifndef POLICY_H
#define POLICY_H

#include <pinion.h>

/* Most rules that a policy may become for one version of IP. A line is a rule for each of its port ranges. */
#define RULES_MAX 4096u

struct policy;

/* Reads a policy; NULL if it is none, and then the log says why. */
struct policy *policy_read(const char *text, size_t len);

/* Whether a packet is to be sent on: what the first rule that fits it says. */
bool policy_allows(const struct policy *policy, const struct pinion_headers *headers);

#endif
