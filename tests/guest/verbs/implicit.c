// SPDX-License-Identifier: GPL-2.0
/*
 * The cases of odp.c with regions that have all memory of the process, and some for these alone.
 */

#define IMPLICIT true
#include "odp.c"
