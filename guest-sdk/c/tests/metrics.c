/* Metrics as a function declares and counts them, and the declarations that a fake node refuses, as a node does. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pinion_test.h>

static pinion_counter passed, dropped;
static pinion_gauge longest;
static pinion_named_gauge last;
/* Further declarations. */
static void (*declare_more)(void);

static int prepare(const uint8_t *config, size_t len)
{
    (void)config, (void)len;
    pinion_declare_counter(&passed, "packets", "Packets that came.", PINION_LABELS({"verdict", "passed"}));
    pinion_declare_counter(&dropped, "packets", "Packets that came.", PINION_LABELS({"verdict", "dropped"}));
    pinion_declare_gauge(&longest, "longest_bytes", "The longest packet so far.", PINION_NO_LABELS);
    pinion_declare_named_gauge(&last, "last_bytes", "The last packet.", PINION_LABELS({"rank", "1"}), "text");
    if (declare_more)
        declare_more();
    return 0;
}

static void handle(pinion_packet *packet)
{
    char text[200] = "";
    const size_t len = pinion_len(packet);
    memcpy(text, pinion_data(packet), len < sizeof text - 1 ? len : sizeof text - 1);
    if ((int64_t)len > pinion_gauge_value(&longest))
        pinion_gauge_set(&longest, (int64_t)len);
    pinion_named_gauge_set(&last, text, (int64_t)len);
    pinion_counter_add(len > 3 ? &passed : &dropped, 1);
    if (len > 3)
        pinion_send(packet);
}

PINION_FUNCTION(.init = prepare, .packet = handle);

static void deliver(const char *text)
{
    pinion_test_deliver_one(text, strlen(text));
}

static void prepared(void)
{
    PINION_CHECK(pinion_test_prepare(""));
}

static void counts_are_shown_by_name_and_labels(void)
{
    prepared();
    PINION_CHECK(pinion_test_metric("packets", PINION_LABELS({"verdict", "passed"})) == 0);
    deliver("four");
    deliver("seventh");
    deliver("two");
    PINION_CHECK(pinion_test_metric("packets", PINION_LABELS({"verdict", "passed"})) == 2);
    PINION_CHECK(pinion_test_metric("packets", PINION_LABELS({"verdict", "dropped"})) == 1);
    PINION_CHECK(pinion_test_metric("longest_bytes", PINION_NO_LABELS) == 7);
    PINION_CHECK(!pinion_test_has_metric("packets", PINION_NO_LABELS) && !pinion_test_has_metric("bytes", PINION_NO_LABELS));
    PINION_CHECK(pinion_counter_value(&passed) == 2);
}

static void each_instance_starts_at_zero(void)
{
    prepared();
    deliver("four");
    prepared();
    PINION_CHECK(pinion_test_metric("packets", PINION_LABELS({"verdict", "passed"})) == 0);
    PINION_CHECK(pinion_test_metric("longest_bytes", PINION_NO_LABELS) == 0);
}

static void a_gauge_goes_up_and_down_and_wraps_around(void)
{
    prepared();
    pinion_gauge_add(&longest, -5);
    PINION_CHECK(pinion_test_metric("longest_bytes", PINION_NO_LABELS) == -5);
    pinion_gauge_set(&longest, INT64_MAX);
    pinion_gauge_add(&longest, 1);
    PINION_CHECK(pinion_gauge_value(&longest) == INT64_MIN);
}

static void a_label_that_changes_is_shown_while_it_is_set(void)
{
    prepared();
    PINION_CHECK(!pinion_test_has_metric("last_bytes", PINION_LABELS({"rank", "1"}, {"text", ""})));
    deliver("four");
    PINION_CHECK(pinion_test_metric("last_bytes", PINION_LABELS({"text", "four"}, {"rank", "1"})) == 4);
    deliver("other");
    PINION_CHECK(!pinion_test_has_metric("last_bytes", PINION_LABELS({"text", "four"}, {"rank", "1"})));
    PINION_CHECK(pinion_test_metric("last_bytes", PINION_LABELS({"rank", "1"}, {"text", "other"})) == 5);
    pinion_named_gauge_clear(&last);
    PINION_CHECK(!pinion_test_has_metric("last_bytes", PINION_LABELS({"rank", "1"}, {"text", "other"})));
}

static void a_label_that_changes_is_cut_between_characters(void)
{
    char label[151], kept[124];
    memset(label, 'a', 123);
    memcpy(label + 123, "\xc3\xa9", 3);
    memset(kept, 'a', 123);
    kept[123] = 0;
    prepared();
    pinion_named_gauge_set(&last, label, 9);
    PINION_CHECK(pinion_test_metric("last_bytes", PINION_LABELS({"rank", "1"}, {"text", kept})) == 9);
    memset(label, 'b', 150);
    label[150] = 0;
    pinion_named_gauge_set(&last, label, 9);
    label[PINION_METRIC_TEXT_BYTES_MAX] = 0;
    PINION_CHECK(pinion_test_metric("last_bytes", PINION_LABELS({"rank", "1"}, {"text", label})) == 9);
}

static pinion_counter others[PINION_METRICS_MAX];

/* Its texts no longer exist after it has returned. */
static void declare_one_of_texts_on_the_stack(void)
{
    char name[] = "stack_total", help[] = "Of the stack.", label[] = "place", value[] = "a\nb\tc\x7f=d";
    pinion_declare_counter(&others[0], name, help, PINION_LABELS({label, value}, {"more", ""}));
    memset(name, 'x', sizeof name - 1);
    memset(value, 'x', sizeof value - 1);
}

static void texts_are_copied_and_control_characters_become_spaces(void)
{
    declare_more = declare_one_of_texts_on_the_stack;
    prepared();
    PINION_CHECK(pinion_test_has_metric("stack_total", PINION_LABELS({"place", "a b c =d"}, {"more", ""})));
}

static void declare_as_many(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char name[40];
        snprintf(name, sizeof name, "other_%zu", i);
        pinion_declare_counter(&others[i], name, "One of many.", PINION_NO_LABELS);
    }
}

static void declare_the_most(void)
{
    declare_as_many(PINION_METRICS_MAX - 4);
}

static void declare_too_many(void)
{
    declare_as_many(PINION_METRICS_MAX - 3);
}

static void a_function_may_declare_the_maximum_of_metrics_but_no_more(void)
{
    declare_more = declare_the_most;
    PINION_CHECK(!pinion_test_panic(prepared));
    PINION_CHECK(pinion_test_has_metric("other_123", PINION_NO_LABELS));
    declare_more = declare_too_many;
    PINION_CHECK(strcmp(pinion_test_panic(prepared), "metric other_124: a function may have 128 metrics, and there are as many before it") == 0);
}

static void declare_one_of_no_name(void)
{
    pinion_declare_counter(&others[0], "", "Nothing.", PINION_NO_LABELS);
}

static void a_declaration_after_init_ends_the_function(void)
{
    prepared();
    PINION_CHECK(strcmp(pinion_test_panic(declare_too_many), "metric other_0: a function declares its metrics when it is initialised") == 0);
}

static void declare_a_wrong_name(void)
{
    pinion_declare_counter(&others[0], "1st", "Something.", PINION_NO_LABELS);
}

static void declare_a_gauge_called_total(void)
{
    static pinion_gauge gauge;
    pinion_declare_gauge(&gauge, "bytes_total", "Something.", PINION_NO_LABELS);
}

static void declare_help_of_two_lines(void)
{
    pinion_declare_counter(&others[0], "bytes", "Something.\nMore.", PINION_NO_LABELS);
}

static void declare_the_nodes_label(void)
{
    pinion_declare_counter(&others[0], "bytes", "Something.", PINION_LABELS({"tenant", "me"}));
}

static void declare_a_label_twice(void)
{
    pinion_declare_counter(&others[0], "bytes", "Something.", PINION_LABELS({"of", "a"}, {"of", "b"}));
}

static void declare_one_twice(void)
{
    pinion_declare_counter(&others[0], "packets", "Packets that came.", PINION_LABELS({"verdict", "passed"}));
}

static void declare_one_that_is_shown_twice(void)
{
    pinion_declare_counter(&others[0], "packets_total", "Packets that came.", PINION_LABELS({"verdict", "passed"}));
}

static void declare_a_label_of_two_lines(void)
{
    pinion_declare_counter(&others[0], "bytes", "Something.", PINION_LABELS({"a\nb", "c"}));
}

static void declare_nine_labels(void)
{
    pinion_declare_counter(&others[0], "bytes", "Something.",
                           PINION_LABELS({"a", ""}, {"b", ""}, {"c", ""}, {"d", ""}, {"e", ""}, {"f", ""}, {"g", ""}, {"h", ""}, {"i", ""}));
}

/* Returns whether preparing the function fails the test; another process finds out, without output. */
static bool is_refused(void (*declare)(void))
{
    fflush(NULL);
    const pid_t process = fork();
    if (process == 0) {
        fclose(stderr);
        declare_more = declare;
        pinion_test_prepare("");
        _exit(0);
    }
    int status;
    PINION_CHECK(waitpid(process, &status, 0) == process && WIFEXITED(status));
    return WEXITSTATUS(status) == 1;
}

static void a_metric_that_a_node_would_refuse_fails_the_test(void)
{
    static void (*const wrong[])(void) = {
        declare_one_of_no_name,  declare_a_wrong_name,  declare_a_gauge_called_total, declare_help_of_two_lines,
        declare_the_nodes_label, declare_a_label_twice, declare_one_twice,            declare_nine_labels,
        declare_one_that_is_shown_twice, declare_a_label_of_two_lines,
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (!is_refused(wrong[i])) {
            fprintf(stderr, "wrong metric %zu\n", i);
            PINION_CHECK(!"it is refused");
        }
    PINION_CHECK(!is_refused(declare_the_most) && !is_refused(NULL));
}

PINION_TESTS(counts_are_shown_by_name_and_labels, each_instance_starts_at_zero, a_gauge_goes_up_and_down_and_wraps_around,
             a_label_that_changes_is_shown_while_it_is_set, a_label_that_changes_is_cut_between_characters, texts_are_copied_and_control_characters_become_spaces,
             a_function_may_declare_the_maximum_of_metrics_but_no_more, a_declaration_after_init_ends_the_function, a_metric_that_a_node_would_refuse_fails_the_test)
