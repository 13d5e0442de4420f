/* A wrong configuration is refused with the same words as in the Rust version. */
#include <stdlib.h>
#include <string.h>

#include <pinion_test.h>

static const struct {
    const char *config;
    const char *refusal;
} wrong[] = {
    {"each 10s", "\"each\" is not known: there are `every SECONDS`, `top COUNT` and `flows COUNT`"},
    {"every", "`every` is followed by a number from 1 to 86400, not by \"\""},
    {"every 0s", "`every` is followed by a number from 1 to 86400, not by \"0\""},
    {"every 10ms", "`every` is followed by a number from 1 to 86400, not by \"10m\""},
    {"top 33", "`top` is followed by a number from 1 to 32, not by \"33\""},
    {"flows 131073", "`flows` is followed by a number from 1 to 131072, not by \"131073\""},
    {"flows 99999999999999999999999", "`flows` is followed by a number from 1 to 131072, not by \"99999999999999999999999\""},
    {"top 3 every 1s top 4", "`top` is said twice"},
};

static void a_wrong_configuration_is_refused_with_what_is_wrong(void)
{
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        PINION_CHECK(!pinion_test_prepare(wrong[i].config));
        PINION_CHECK(strcmp(pinion_test_last_log(), wrong[i].refusal) == 0);
    }
}

static void words_come_in_any_order_and_none_has_to_be_there(void)
{
    PINION_CHECK(pinion_test_prepare(" flows 131072\ttop 32\nevery 1s\n"));
}

static void nothing_at_all_is_a_configuration(void)
{
    PINION_CHECK(pinion_test_prepare(""));
}

static void no_text_is_read_beyond_its_end(void)
{
    static const char text[] = "every 10s top 12 flows 100";
    for (size_t len = 0; len < sizeof text - 1; len++) {
        /* Allocated with exactly that many bytes, so that the sanitizer finds any read beyond. */
        char *part = malloc(len ? len : 1);
        memcpy(part, text, len);
        pinion_test_prepare_with(part, len);
        free(part);
    }
}

PINION_TESTS(a_wrong_configuration_is_refused_with_what_is_wrong, words_come_in_any_order_and_none_has_to_be_there,
             nothing_at_all_is_a_configuration, no_text_is_read_beyond_its_end)
