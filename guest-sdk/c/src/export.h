/* The module's exports: only the node calls them. */
#ifndef PINION_EXPORT_H
#define PINION_EXPORT_H

#include "internal.h"

#define EXPORT(name, declaration) __attribute__((export_name(name))) declaration; declaration
#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)

#endif
