/* SPDX-License-Identifier: GPL-2.0 */
/* For helpers that clang compiles for a kernel that gcc built (Kbuild). */
#define RIWARP_INLINE
#ifndef CONFIG_CC_IS_CLANG
#define CONFIG_CC_IS_CLANG 1
#undef CONFIG_CC_IS_GCC
/* LLVM does not support segments in the operands of inline assembly. */
#undef CONFIG_CC_HAS_NAMED_AS
#undef CONFIG_USE_X86_SEG_SUPPORT
#endif
