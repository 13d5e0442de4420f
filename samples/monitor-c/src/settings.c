/* Parses a text, which need not end with a zero byte, into settings. */
#include <string.h>

#include <pinion.h>

#include "settings.h"

#define EVERY_S_MAX (24 * 3600)
#define FLOWS_MAX (1u << 17)

struct word {
    const char *at;
    size_t len;
};

/* For printf's `%.*s`. */
#define WORD(word) (int)(word).len, (word).at

static bool is_space(char letter)
{
    return letter == ' ' || (letter >= '\t' && letter <= '\r' && letter != '\v');
}

/* Takes the next word off the text; an empty one if there is none. */
static struct word next_word(const char **at, const char *end)
{
    while (*at < end && is_space(**at))
        ++*at;
    struct word word = {*at, 0};
    for (; *at < end && !is_space(**at); ++*at)
        word.len++;
    return word;
}

static bool is(struct word word, const char *text)
{
    return word.len == strlen(text) && memcmp(word.at, text, word.len) == 0;
}

/* Parses a number from 1 to `max`; returns 0 if the word is none. */
static uint32_t number_of(struct word word, uint32_t max)
{
    uint64_t number = 0;
    for (size_t i = 0; i < word.len; i++) {
        if (word.at[i] < '0' || word.at[i] > '9')
            return 0;
        number = number * 10 + (uint64_t)(word.at[i] - '0');
        if (number > max)
            return 0;
    }
    return (uint32_t)number;
}

/* A setting's word, and the greatest number that may follow it. */
struct setting {
    const char *name;
    uint32_t max;
    uint32_t *number;
    bool is_said;
};

static bool read_one(struct setting *setting, struct word value)
{
    if (setting->is_said) {
        pinion_refuse("`%s` is said twice", setting->name);
        return false;
    }
    setting->is_said = true;
    *setting->number = number_of(value, setting->max);
    if (*setting->number == 0)
        pinion_refuse("`%s` is followed by a number from 1 to %u, not by \"%.*s\"", setting->name, setting->max, WORD(value));
    return *setting->number != 0;
}

bool settings_read(struct settings *settings, const char *text, size_t len)
{
    *settings = (struct settings){.every_s = 10, .top = 10, .flows = 4096};
    struct setting known[] = {
        {"every", EVERY_S_MAX, &settings->every_s, false},
        {"top", TOP_MAX, &settings->top, false},
        {"flows", FLOWS_MAX, &settings->flows, false},
    };
    const char *at = text, *const end = text + len;
    for (struct word word; (word = next_word(&at, end)).len > 0;) {
        struct word value = next_word(&at, end);
        struct setting *setting = known;
        while (setting < known + 3 && !is(word, setting->name))
            setting++;
        if (setting == known + 3) {
            pinion_refuse("\"%.*s\" is not known: there are `every SECONDS`, `top COUNT` and `flows COUNT`", WORD(word));
            return false;
        }
        if (setting == known && value.len > 0 && value.at[value.len - 1] == 's')
            value.len--;
        if (!read_one(setting, value))
            return false;
    }
    return true;
}
