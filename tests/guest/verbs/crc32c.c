// SPDX-License-Identifier: GPL-2.0
/* CRC32c for wire/iwarp.py, bit by bit from the polynomial (RFC 5044, section 4.4), made into a table. */

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(const uint8_t *data, size_t len)
{
	static uint32_t table[256];
	uint32_t crc = 0xffffffff;

	if (!table[1])
		for (uint32_t i = 0; i < 256; i++) {
			uint32_t c = i;

			for (int k = 0; k < 8; k++)
				c = c >> 1 ^ (c & 1 ? 0x82f63b78 : 0);
			table[i] = c;
		}
	while (len--)
		crc = table[(crc ^ *data++) & 0xff] ^ crc >> 8;
	return crc ^ 0xffffffff;
}
