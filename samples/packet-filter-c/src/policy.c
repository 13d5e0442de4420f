#include "policy.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "words.h"

/* A network. An IPv4 address is in the first four bytes of `address`. */
struct net {
    int version;
    uint32_t len;
    uint8_t address[16];
};

struct prefix {
    uint64_t bits[2];
    uint64_t mask[2];
};

struct ports {
    uint16_t first;
    uint16_t last;
};

struct rule {
    struct prefix source;
    struct prefix destination;
    bool allow;
    bool has_protocol;
    uint8_t protocol;
    /* If set, ports and flags are compared as well; a packet without known ports does not match. */
    bool has_transport;
    bool established;
    struct ports source_ports;
    struct ports destination_ports;
};

struct rules {
    struct rule *rules;
    size_t count;
    size_t capacity;
};

struct policy {
    struct rules v4;
    struct rules v6;
    bool allow;
};

/* A list of port ranges as written. */
struct port_list {
    bool is_said;
    struct word word;
    size_t count;
};

enum protocol {
    ANY_PROTOCOL,
    /* ICMP or ICMPv6, by the packet's IP version. */
    ICMP,
    BY_NUMBER,
};

/* A line as written. */
struct statement {
    bool allow;
    enum protocol protocol;
    uint8_t number;
    bool has_source;
    bool has_destination;
    struct net source;
    struct net destination;
    struct port_list source_ports;
    struct port_list destination_ports;
    bool established;
};

#define REFUSE(line, format, ...) (pinion_refuse("policy, line %zu: " format, line, ##__VA_ARGS__), false)

static bool fits_prefix(const struct prefix *prefix, const uint64_t address[2])
{
    return (address[0] & prefix->mask[0]) == prefix->bits[0] && (address[1] & prefix->mask[1]) == prefix->bits[1];
}

static bool fits_ports(struct ports ports, uint16_t port)
{
    return ports.first <= port && port <= ports.last;
}

static bool fits(const struct rule *rule, const struct pinion_headers *headers, const uint64_t source[2], const uint64_t destination[2])
{
    if (rule->has_protocol && rule->protocol != headers->protocol)
        return false;
    if (!fits_prefix(&rule->source, source) || !fits_prefix(&rule->destination, destination))
        return false;
    if (!rule->has_transport)
        return true;
    if (!headers->has_ports || !fits_ports(rule->destination_ports, headers->destination_port)
        || !fits_ports(rule->source_ports, headers->source_port))
        return false;
    return !rule->established || (headers->has_tcp_flags && headers->tcp_flags & (PINION_TCP_ACK | PINION_TCP_RST));
}

bool policy_allows(const struct policy *policy, const struct pinion_headers *headers)
{
    const struct rules *rules = headers->version == 4 ? &policy->v4 : &policy->v6;
    uint64_t source[2], destination[2];
    memcpy(source, headers->source, sizeof source);
    memcpy(destination, headers->destination, sizeof destination);
    for (size_t i = 0; i < rules->count; i++)
        if (fits(&rules->rules[i], headers, source, destination))
            return rules->rules[i].allow;
    return policy->allow;
}

/* --- Words to statements. ------------------------------------------------------------------------------------------------------------ */

static bool verdict_of(struct word word, bool *allow)
{
    *allow = is(word, "allow");
    return *allow || is(word, "deny");
}

static bool protocol_of(struct word word, struct statement *statement)
{
    uint32_t number;
    if (is(word, "icmp")) {
        statement->protocol = ICMP;
        return true;
    }
    if (is(word, "tcp"))
        number = PINION_TCP;
    else if (is(word, "udp"))
        number = PINION_UDP;
    else if (!number_of(word, UINT8_MAX, &number))
        return false;
    statement->protocol = BY_NUMBER;
    statement->number = (uint8_t)number;
    return true;
}

static bool range_of(struct word word, struct ports *ports)
{
    const bool has_both = has(word, '-');
    const struct word first = take_until(&word, '-');
    uint32_t from, to;
    if (!number_of(first, UINT16_MAX, &from) || !number_of(has_both ? word : first, UINT16_MAX, &to) || from > to)
        return false;
    *ports = (struct ports){(uint16_t)from, (uint16_t)to};
    return true;
}

static bool port_list_of(size_t line, struct word word, struct port_list *list)
{
    *list = (struct port_list){.is_said = true, .word = word};
    struct word rest = word;
    for (bool more = true; more; list->count++) {
        struct ports ports;
        more = has(rest, ',');
        if (!range_of(take_until(&rest, ','), &ports))
            return REFUSE(line, "\"%.*s\" are no ports: they look like 80, 8000-8099 or 80,443", WORD(word));
    }
    return true;
}

static bool net_of(size_t line, struct word word, struct net *net)
{
    char address[INET6_ADDRSTRLEN];
    struct word rest = word;
    const bool has_len = has(word, '/');
    const struct word host = take_until(&rest, '/');
    *net = (struct net){.version = has(host, ':') ? 6 : 4};
    const uint32_t bits = net->version == 6 ? 128 : 32;
    bool is_net = host.len < sizeof address;
    if (is_net) {
        memcpy(address, host.at, host.len);
        address[host.len] = 0;
        is_net = strlen(address) == host.len && inet_pton(net->version == 6 ? AF_INET6 : AF_INET, address, net->address) == 1;
    }
    net->len = bits;
    if (!is_net || (has_len && !number_of(rest, bits, &net->len)))
        return REFUSE(line, "\"%.*s\" is no network: it looks like 10.0.0.0/8, fd00::/8, or an address alone", WORD(word));
    return true;
}

static bool check(size_t line, const struct statement *statement)
{
    const bool is_tcp = statement->protocol == BY_NUMBER && statement->number == PINION_TCP;
    const bool is_udp = statement->protocol == BY_NUMBER && statement->number == PINION_UDP;
    if ((statement->source_ports.is_said || statement->destination_ports.is_said) && !is_tcp && !is_udp)
        return REFUSE(line, "only tcp and udp have ports");
    if (statement->established && !is_tcp)
        return REFUSE(line, "only tcp has connections, so `established` goes with nothing else");
    if (statement->has_source && statement->has_destination && statement->source.version != statement->destination.version) {
        char from[INET6_ADDRSTRLEN], to[INET6_ADDRSTRLEN];
        inet_ntop(statement->source.version == 6 ? AF_INET6 : AF_INET, statement->source.address, from, sizeof from);
        inet_ntop(statement->destination.version == 6 ? AF_INET6 : AF_INET, statement->destination.address, to, sizeof to);
        return REFUSE(line, "no packet goes from %s/%u to %s/%u", from, statement->source.len, to, statement->destination.len);
    }
    return true;
}

/* Parses one of the clauses after the protocol, with its argument. */
static bool read_clause(size_t line, struct word word, struct text *rest, struct statement *statement)
{
    bool *said;
    if (is(word, "established"))
        said = &statement->established;
    else if (is(word, "from"))
        said = &statement->has_source;
    else if (is(word, "to"))
        said = &statement->has_destination;
    else if (is(word, "from-ports"))
        said = &statement->source_ports.is_said;
    else
        return REFUSE(line, "\"%.*s\" is not known: after the protocol come `from`, `from-ports`, `to` or `established`", WORD(word));
    const bool was_said = *said;
    *said = true;
    if (said != &statement->established) {
        const struct word value = next_word(rest);
        bool is_right;
        if (value.len == 0)
            return REFUSE(line, "`%.*s` is the last word: say of what", WORD(word));
        if (said == &statement->source_ports.is_said)
            is_right = port_list_of(line, value, &statement->source_ports);
        else
            is_right = net_of(line, value, said == &statement->has_source ? &statement->source : &statement->destination);
        if (!is_right)
            return false;
    }
    return was_said ? REFUSE(line, "`%.*s` is said twice", WORD(word)) : true;
}

static bool read_statement(size_t line, struct text rest, struct statement *statement)
{
    if (protocol_of(peek_word(rest), statement)) {
        next_word(&rest);
        const struct word ports = peek_word(rest);
        if (ports.len > 0 && ports.at[0] >= '0' && ports.at[0] <= '9'
            && !port_list_of(line, next_word(&rest), &statement->destination_ports))
            return false;
    }
    for (struct word word = next_word(&rest); word.len > 0; word = next_word(&rest))
        if (!read_clause(line, word, &rest, statement))
            return false;
    return check(line, statement);
}

/* --- Statements to rules. ------------------------------------------------------------------------------------------------------------ */

static struct prefix prefix_of(const struct net *net)
{
    uint8_t mask[16] = {0}, bits[16];
    for (uint32_t i = 0; i < net->len; i++)
        mask[i / 8] |= (uint8_t)(0x80 >> i % 8);
    for (size_t i = 0; i < sizeof bits; i++)
        bits[i] = net->address[i] & mask[i];
    struct prefix prefix;
    memcpy(prefix.bits, bits, sizeof bits);
    memcpy(prefix.mask, mask, sizeof mask);
    return prefix;
}

static void add(struct rules *rules, const struct rule *rule)
{
    if (rules->count == rules->capacity) {
        rules->capacity = rules->capacity ? 2 * rules->capacity : 16;
        rules->rules = realloc(rules->rules, rules->capacity * sizeof *rules->rules);
        if (!rules->rules)
            pinion_panic("there is no memory for %zu rules", rules->capacity);
    }
    rules->rules[rules->count++] = *rule;
}

/* Takes the next range of a list; if no list is given, all ports. */
static struct ports next_range(struct word *rest, bool is_said)
{
    struct ports ports = {0, UINT16_MAX};
    if (is_said)
        range_of(take_until(rest, ','), &ports);
    return ports;
}

static void add_rules(struct rules *rules, int version, const struct statement *statement)
{
    const bool is_other = (statement->has_source && statement->source.version != version)
                          || (statement->has_destination && statement->destination.version != version);
    if (is_other)
        return;
    struct rule rule = {
        .source = prefix_of(&statement->source),
        .destination = prefix_of(&statement->destination),
        .allow = statement->allow,
        .has_protocol = statement->protocol != ANY_PROTOCOL,
        .protocol = statement->protocol == BY_NUMBER ? statement->number : version == 4 ? PINION_ICMP : PINION_ICMPV6,
        .has_transport = statement->source_ports.is_said || statement->destination_ports.is_said || statement->established,
        .established = statement->established,
    };
    const size_t sources = statement->source_ports.is_said ? statement->source_ports.count : 1;
    const size_t destinations = statement->destination_ports.is_said ? statement->destination_ports.count : 1;
    struct word source_rest = statement->source_ports.word;
    for (size_t i = 0; i < sources; i++) {
        rule.source_ports = next_range(&source_rest, statement->source_ports.is_said);
        struct word destination_rest = statement->destination_ports.word;
        for (size_t j = 0; j < destinations; j++) {
            rule.destination_ports = next_range(&destination_rest, statement->destination_ports.is_said);
            add(rules, &rule);
        }
    }
}

static bool add_statement(size_t line, struct policy *policy, const struct statement *statement)
{
    const size_t sources = statement->source_ports.is_said ? statement->source_ports.count : 1;
    const size_t destinations = statement->destination_ports.is_said ? statement->destination_ports.count : 1;
    const size_t most = policy->v4.count > policy->v6.count ? policy->v4.count : policy->v6.count;
    if ((uint64_t)sources * destinations > RULES_MAX - most)
        return REFUSE(line, "with this line there are more than %u rules", RULES_MAX);
    add_rules(&policy->v4, 4, statement);
    add_rules(&policy->v6, 6, statement);
    return true;
}

static bool read_default(size_t line, struct text rest, struct policy *policy)
{
    const struct word word = next_word(&rest);
    /* All words up to the line's end. */
    struct word all = word;
    for (struct word next = next_word(&rest); next.len > 0; next = next_word(&rest))
        all.len = (size_t)(next.at + next.len - all.at);
    if (all.len != word.len || !verdict_of(word, &policy->allow))
        return REFUSE(line, "\"%.*s\" after `default`: `allow` or `deny` is to follow, and nothing else", WORD(all));
    return true;
}

static bool read_line(size_t number, struct text line, struct policy *policy, bool *has_default)
{
    struct statement statement = {.allow = false};
    const struct word verb = next_word(&line);
    if (verb.len == 0)
        return true;
    if (*has_default)
        return REFUSE(number, "this is never reached: `default` is the last line");
    if (is(verb, "default")) {
        *has_default = true;
        return read_default(number, line, policy);
    }
    if (!verdict_of(verb, &statement.allow))
        return REFUSE(number, "\"%.*s\" is not known: a line starts with `allow`, `deny` or `default`", WORD(verb));
    return read_statement(number, line, &statement) && add_statement(number, policy, &statement);
}

static void discard(struct policy *policy)
{
    free(policy->v4.rules);
    free(policy->v6.rules);
    free(policy);
}

struct policy *policy_read(const char *text, size_t len)
{
    struct policy *policy = calloc(1, sizeof *policy);
    if (!policy)
        pinion_panic("there is no memory for a policy");
    struct text rest = {text, text + len}, line;
    bool has_default = false;
    for (size_t number = 1; next_line(&rest, &line); number++) {
        struct word word = {line.at, (size_t)(line.end - line.at)};
        const struct word said = take_until(&word, '#');
        if (!read_line(number, (struct text){said.at, said.at + said.len}, policy, &has_default)) {
            discard(policy);
            return NULL;
        }
    }
    if (!has_default) {
        pinion_refuse("the policy has no default: end it with `default deny` or `default allow`");
        discard(policy);
        return NULL;
    }
    return policy;
}
