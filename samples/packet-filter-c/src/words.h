/* Words of a text, which need not end with a zero. */
#ifndef WORDS_H
#define WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct word {
    const char *at;
    size_t len;
};

/* A place in a text. */
struct text {
    const char *at;
    const char *end;
};

/* Takes the next line off the text, without what ends it. False if there is none. */
bool next_line(struct text *text, struct text *line);
/* Takes the next word off a line; an empty one if there is none. */
struct word next_word(struct text *line);
/* The same, but leaves it where it is. */
struct word peek_word(struct text line);
/* Takes what is before the first `separator` off the word, and that as well; all of it if there is none. */
struct word take_until(struct word *word, char separator);
bool has(struct word word, char letter);
bool is(struct word word, const char *text);
/* Reads a number of digits only, up to `max`. */
bool number_of(struct word word, uint32_t max, uint32_t *number);

/* For printf's `%.*s`. */
#define WORD(word) (int)(word).len, (word).at

#endif
