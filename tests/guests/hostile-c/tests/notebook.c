/* Orders and their answers with the fake node's state: those of the sample in Rust, to which real nodes give the same answers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pinion_test.h>

static const char orders[] = "../../../samples/notebook/tests/orders.txt";

static void grant(bool read_only)
{
    pinion_test_grant_state((struct pinion_test_field){.name = "notes", .value_bytes = 24, .entries = 4, .read_only = read_only});
    PINION_CHECK(pinion_test_prepare("notes"));
}

static void answers(const char *order, const char *expected)
{
    const char *answer = pinion_test_call(order);
    if (!answer || strcmp(answer, expected) != 0) {
        fprintf(stderr, "%s: %s is expected, and the answer is %s\n", order, expected, answer ? answer : "none");
        PINION_CHECK(!"the answer is the one expected");
    }
}

static void orders_are_obeyed_as_by_the_notebook_in_rust(void)
{
    char line[300];
    int obeyed = 0;
    FILE *file = fopen(orders, "r");
    PINION_CHECK(file);
    grant(false);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *answer = strstr(line, " => ");
        if (line[0] == 0 || line[0] == '#')
            continue;
        if (answer) {
            *answer = 0;
            answers(line, answer + 4);
            obeyed++;
        } else {
            PINION_CHECK(strncmp(line, "wait ", 5) == 0);
            pinion_test_let_pass_ns(strtoull(line + 5, NULL, 10) * 1000000);
        }
    }
    fclose(file);
    PINION_CHECK(obeyed > 40);
    PINION_CHECK(pinion_test_metric("notebook_orders", PINION_LABELS({"outcome", "obeyed"})) > 30);
}

static void who_may_only_read_changes_nothing_and_finds_what_another_instance_kept(void)
{
    static const char *const changes[] = {"put colour red", "add colour 1", "swap colour blue red", "expire colour 1", "delete colour"};
    grant(false);
    answers("put colour blue", "ok");
    grant(true);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        answers(changes[i], "the stage is granted this state field to read only");
    answers("get colour", "blue");
    PINION_CHECK(pinion_test_metric("notebook_orders", PINION_LABELS({"outcome", "refused"})) == 5);
    PINION_CHECK(pinion_test_metric("notebook_orders", PINION_LABELS({"outcome", "obeyed"})) == 1);
}

static void a_field_that_is_not_granted_is_named(void)
{
    PINION_CHECK(!pinion_test_prepare("nots"));
    PINION_CHECK(strcmp(pinion_test_last_log(),
                        "state field \"nots\": the stage is granted no state field of this name: grant it in the chain's manifest") == 0);
}

PINION_TESTS(orders_are_obeyed_as_by_the_notebook_in_rust, who_may_only_read_changes_nothing_and_finds_what_another_instance_kept,
             a_field_that_is_not_granted_is_named)
