#include "words.h"

#include <string.h>

bool next_line(struct text *text, struct text *line)
{
    if (text->at == text->end)
        return false;
    const char *newline = memchr(text->at, '\n', (size_t)(text->end - text->at));
    line->at = text->at;
    line->end = newline ? newline : text->end;
    text->at = newline ? newline + 1 : text->end;
    return true;
}

static bool is_space(char letter)
{
    return letter == ' ' || letter == '\t' || letter == '\r' || letter == '\f';
}

struct word next_word(struct text *line)
{
    while (line->at < line->end && is_space(*line->at))
        line->at++;
    const char *start = line->at;
    while (line->at < line->end && !is_space(*line->at))
        line->at++;
    return (struct word){start, (size_t)(line->at - start)};
}

struct word peek_word(struct text line)
{
    return next_word(&line);
}

bool has(struct word word, char letter)
{
    return word.len > 0 && memchr(word.at, letter, word.len);
}

struct word take_until(struct word *word, char separator)
{
    const char *found = word->len > 0 ? memchr(word->at, separator, word->len) : NULL;
    const struct word before = {word->at, found ? (size_t)(found - word->at) : word->len};
    const size_t taken = found ? before.len + 1 : before.len;
    word->at += taken;
    word->len -= taken;
    return before;
}

bool is(struct word word, const char *text)
{
    return word.len == strlen(text) && memcmp(word.at, text, word.len) == 0;
}

bool number_of(struct word word, uint32_t max, uint32_t *number)
{
    uint64_t value = 0;
    for (size_t i = 0; i < word.len; i++) {
        if (word.at[i] < '0' || word.at[i] > '9')
            return false;
        value = value * 10 + (uint64_t)(word.at[i] - '0');
        if (value > max)
            return false;
    }
    *number = (uint32_t)value;
    return word.len > 0;
}
