// SPDX-License-Identifier: GPL-2.0

//! Why something was not done, in words for a person.

use rustix::io::Errno;

/// The words.
#[derive(Debug)]
pub struct Failure(pub String);

impl From<&str> for Failure {
    fn from(why: &str) -> Self {
        Self(why.into())
    }
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self(why)
    }
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Self(std::io::Error::from(error).to_string())
    }
}
