/* A wrong policy is refused with its line, and with the same words as in the Rust version. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pinion_test.h>

static const struct {
    const char *policy;
    const char *refusal;
} wrong[] = {
    {"", "the policy has no default: end it with `default deny` or `default allow`"},
    {"allow tcp 80", "the policy has no default: end it with `default deny` or `default allow`"},
    {"permit tcp 80", "policy, line 1: \"permit\" is not known: a line starts with `allow`, `deny` or `default`"},
    {"allow\ndefault", "policy, line 2: \"\" after `default`: `allow` or `deny` is to follow, and nothing else"},
    {"default deny all", "policy, line 1: \"deny all\" after `default`: `allow` or `deny` is to follow, and nothing else"},
    {"default deny\nallow", "policy, line 2: this is never reached: `default` is the last line"},
    {"allow tpc 80", "policy, line 1: \"tpc\" is not known: after the protocol come `from`, `from-ports`, `to` or `established`"},
    {"allow 999", "policy, line 1: \"999\" is not known: after the protocol come `from`, `from-ports`, `to` or `established`"},
    {"allow tcp 80-", "policy, line 1: \"80-\" are no ports: they look like 80, 8000-8099 or 80,443"},
    {"allow tcp 80,", "policy, line 1: \"80,\" are no ports: they look like 80, 8000-8099 or 80,443"},
    {"allow tcp 90-80", "policy, line 1: \"90-80\" are no ports: they look like 80, 8000-8099 or 80,443"},
    {"allow tcp 65536", "policy, line 1: \"65536\" are no ports: they look like 80, 8000-8099 or 80,443"},
    {"allow icmp 80", "policy, line 1: only tcp and udp have ports"},
    {"allow from-ports 80", "policy, line 1: only tcp and udp have ports"},
    {"allow udp established", "policy, line 1: only tcp has connections, so `established` goes with nothing else"},
    {"allow from 10.0.0/8", "policy, line 1: \"10.0.0/8\" is no network: it looks like 10.0.0.0/8, fd00::/8, or an address alone"},
    {"allow from 10.0.0.0/33", "policy, line 1: \"10.0.0.0/33\" is no network: it looks like 10.0.0.0/8, fd00::/8, or an address alone"},
    {"allow tcp from", "policy, line 1: `from` is the last word: say of what"},
    {"allow from 10.0.0.1 from 10.0.0.2", "policy, line 1: `from` is said twice"},
    {"allow tcp from-ports 1 from-ports 2", "policy, line 1: `from-ports` is said twice"},
    {"allow from 10.0.0.1 to fd00::1", "policy, line 1: no packet goes from 10.0.0.1/32 to fd00::1/128"},
};

static void what_is_wrong_is_said_with_its_line(void)
{
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        PINION_CHECK(!pinion_test_prepare(wrong[i].policy));
        if (strcmp(pinion_test_last_log(), wrong[i].refusal) != 0) {
            fprintf(stderr, "%s: %s\n", wrong[i].policy, pinion_test_last_log());
            PINION_CHECK(!"the refusal is the one expected");
        }
    }
}

static void comments_and_empty_lines_mean_nothing(void)
{
    PINION_CHECK(pinion_test_prepare("# for the web\n\n  allow   tcp 80 # and nothing else\r\n\t\ndefault deny  # all the rest\n\n# end"));
}

/* Returns the words `count` times, and then the rest. */
static char *repeated(const char *words, size_t count, const char *rest)
{
    const size_t len = strlen(words);
    char *text = malloc(count * len + strlen(rest) + 1);
    for (size_t i = 0; i < count; i++)
        memcpy(text + i * len, words, len);
    strcpy(text + count * len, rest);
    return text;
}

static void a_policy_of_too_many_rules_is_refused(void)
{
    char *full = repeated("allow tcp 1\n", 4096, "default deny");
    PINION_CHECK(pinion_test_prepare(full));
    char *over = repeated("allow tcp 1\n", 4097, "default deny");
    PINION_CHECK(!pinion_test_prepare(over));
    PINION_CHECK(strcmp(pinion_test_last_log(), "policy, line 4097: with this line there are more than 4096 rules") == 0);
    free(full);
    free(over);
}

static void no_text_is_read_beyond_its_end(void)
{
    static const char text[] = "allow tcp 80,443 from 10.0.0.0/8 from-ports 1-2 established\ndefault deny";
    for (size_t len = 0; len < sizeof text - 1; len++) {
        /* Allocated with exactly that many bytes, so that the sanitizer finds any read beyond. */
        char *part = malloc(len ? len : 1);
        memcpy(part, text, len);
        pinion_test_prepare_with(part, len);
        free(part);
    }
}

PINION_TESTS(what_is_wrong_is_said_with_its_line, comments_and_empty_lines_mean_nothing, a_policy_of_too_many_rules_is_refused,
             no_text_is_read_beyond_its_end)
