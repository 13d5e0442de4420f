/* The policy: its text, and the rules made from it.
 *
 *   policy   = line...                 the first rule that matches a packet decides
 *   line     = rule | "default" ("allow" | "deny") | nothing      "#" starts a comment
 *   rule     = ("allow" | "deny") [protocol [ports]] ["from" net] ["from-ports" ports] ["to" net] ["established"]
 *   protocol = "tcp" | "udp" | "icmp" | number
 *   ports    = destination ports: "80", "8000-8099", or several with commas and no spaces between
 *
 * The text is parsed once per chain, into a list of rules for each version of IP. The verdict on a packet is a walk over a few words
 * of memory, without allocation, bounded by RULES_MAX. */
#ifndef POLICY_H
#define POLICY_H

#include <pinion.h>

/* Most rules of a policy for one version of IP. A line makes a rule for each of its port ranges. */
#define RULES_MAX 4096u

struct policy;

/* Parses a policy. Returns NULL if it is invalid, and says why in the log. */
struct policy *policy_read(const char *text, size_t len);

/* Returns whether the policy allows a packet: the action of the first rule that matches. */
bool policy_allows(const struct policy *policy, const struct pinion_headers *headers);

#endif
