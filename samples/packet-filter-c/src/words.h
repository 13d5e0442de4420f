/* Words of a text, which need not end with a zero byte. */
#ifndef WORDS_H
#define WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct word {
    const char *at;
    size_t len;
};

/* A position in a text. */
struct text {
    const char *at;
    const char *end;
};

/* Takes the next line off the text, without its line end. Returns false if there is none. */
bool next_line(struct text *text, struct text *line);
/* Takes the next word off a line; an empty one if there is none. */
struct word next_word(struct text *line);
/* Returns the next word without taking it. */
struct word peek_word(struct text line);
/* Takes the part before the first `separator` off the word, and the separator; the whole word if there is none. */
struct word take_until(struct word *word, char separator);
bool has(struct word word, char letter);
bool is(struct word word, const char *text);
/* Parses a number of digits only, up to `max`. */
bool number_of(struct word word, uint32_t max, uint32_t *number);

/* For printf's `%.*s`. */
#define WORD(word) (int)(word).len, (word).at

#endif
