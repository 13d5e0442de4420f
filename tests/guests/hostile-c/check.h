/* Cases that messages name: each answers "ok", or says what was wrong. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <pinion.h>

/* Ends a case with the line, the condition and errno unless it holds. */
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            snprintf(problem, sizeof problem, "line %d: %s (errno %d)", __LINE__, #condition, errno); \
            return; \
        } \
    } while (0)

/* The same for an expression that must have this value. */
#define CHECK_IS(expression, number) \
    do { \
        long long found = (expression), expected = (number); \
        if (found != expected) { \
            snprintf(problem, sizeof problem, "line %d: %s is %lld and not %lld (errno %d)", __LINE__, #expression, found, \
                expected, errno); \
            return; \
        } \
    } while (0)

/* A call that must fail with this errno. */
#define CHECK_FAILS(call, number) \
    do { \
        errno = 0; \
        CHECK_IS(call, -1); \
        CHECK_IS(errno, number); \
    } while (0)

struct check_case {
    const char *name;
    void (*run)(void);
};

static char problem[400];

/* Runs the case that a message names, and answers. */
static inline void check_answer(pinion_packet *packet, const struct check_case *cases, size_t count)
{
    uint8_t *payload;
    size_t len;
    if (!pinion_message(packet, &payload, &len))
        return;
    snprintf(problem, sizeof problem, "there is no case %.*s", (int)len, (const char *)payload);
    for (size_t i = 0; i < count; i++)
        if (strlen(cases[i].name) == len && memcmp(cases[i].name, payload, len) == 0) {
            strcpy(problem, "ok");
            cases[i].run();
            break;
        }
    pinion_answer(packet, problem, strlen(problem));
}

#endif
