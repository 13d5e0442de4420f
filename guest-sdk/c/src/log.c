/* The tenant's log, and panics. A line is formatted on the stack, and cut at the longest length that a node keeps. */
#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

#define LINE_BYTES_MAX PINION_LOG_LINE_BYTES_MAX

enum pinion_log_level pinion_log_level_max_ = PINION_DEBUG;

size_t pinion_whole_characters(const char *text, size_t len)
{
    size_t last = len;
    while (last > 0 && len - last < 4 && ((uint8_t)text[last - 1] & 0xc0) == 0x80)
        last--;
    if (last == 0)
        return len;
    const uint8_t lead = (uint8_t)text[last - 1];
    const size_t wanted = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    return len - (last - 1) < wanted ? last - 1 : len;
}

/* Formats a line and returns its length. */
static size_t format_line(char line[LINE_BYTES_MAX + 1], const char *format, va_list arguments)
{
    const int wanted = vsnprintf(line, LINE_BYTES_MAX + 1, format, arguments);
    if (wanted < 0)
        return 0;
    return wanted > LINE_BYTES_MAX ? pinion_whole_characters(line, LINE_BYTES_MAX) : (size_t)wanted;
}

static void log_line(enum pinion_log_level level, const char *format, va_list arguments)
{
    char line[LINE_BYTES_MAX + 1];
    pinion_host_log(level, line, format_line(line, format, arguments));
}

void pinion_log_up_to(enum pinion_log_level level)
{
    pinion_log_level_max_ = level;
}

void (pinion_log)(enum pinion_log_level level, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    log_line(level, format, arguments);
    va_end(arguments);
}

int pinion_refuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    log_line(PINION_ERROR, format, arguments);
    va_end(arguments);
    return PINION_INIT_STATUS_CONFIG_REFUSED;
}

void pinion_panic(const char *format, ...)
{
    char line[LINE_BYTES_MAX + 1];
    va_list arguments;
    va_start(arguments, format);
    const size_t len = format_line(line, format, arguments);
    va_end(arguments);
    pinion_host_panic(line, len);
}

void pinion_log_open(void)
{
    /* Line buffering for stderr: without it each part of a line would be a write, and the node would make each a line of its own. stdout
     * is line buffered already. */
    static char line[LINE_BYTES_MAX];
    setvbuf(stderr, line, _IOLBF, sizeof line);
}
