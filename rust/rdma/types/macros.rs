// SPDX-License-Identifier: GPL-2.0

//! Macros that mirror sets of flags and enumerations of C.

/// Defines a set of bits of a C enumeration as a small copyable type.
macro_rules! bit_set {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($repr:ty) { $( $(#[$doc:meta])* $flag:ident = $value:expr; )* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name($repr);

        impl $name {
            $( $(#[$doc])* pub const $flag: Self = Self($value); )*

            /// The empty set.
            pub const fn empty() -> Self {
                Self(0)
            }

            /// Keeps every bit, unknown ones included.
            pub const fn from_bits(bits: $repr) -> Self {
                Self(bits)
            }

            /// Returns the bits of the C value.
            pub const fn bits(self) -> $repr {
                self.0
            }

            /// Returns the union of both sets.
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// Returns whether every bit of `other` is in this set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Returns whether any bit of `other` is in this set.
            pub const fn intersects(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }

            /// Returns the bits of this set that are not in `other`.
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Returns whether no bit is set.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }

        impl core::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl core::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }

        impl core::ops::BitAnd for $name {
            type Output = Self;

            fn bitand(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
        }
    };
}

/// Defines an enumeration that mirrors a C one.
macro_rules! c_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $( $(#[$doc:meta])* $variant:ident = $value:expr; )* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $( $(#[$doc])* $variant, )*
        }

        impl $name {
            /// Returns the value of the C enumeration.
            pub const fn to_raw(self) -> u32 {
                match self {
                    // CAST: The C enumerations have small non-negative values.
                    $( Self::$variant => $value as u32, )*
                }
            }

            /// Returns the variant with that C value, if one exists.
            pub const fn from_raw(raw: u32) -> Option<Self> {
                $(
                    // CAST: As above.
                    if raw == $value as u32 {
                        return Some(Self::$variant);
                    }
                )*
                None
            }
        }
    };
}
pub(crate) use bit_set;
pub(crate) use c_enum;
