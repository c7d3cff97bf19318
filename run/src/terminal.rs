// SPDX-License-Identifier: GPL-2.0

//! The caller's terminal, if a standard stream is one.

use rustix::stdio;
use rustix::termios::{self, OptionalActions, Termios};
use std::os::fd::OwnedFd;

/// The terminal; drop restores its mode.
pub(crate) struct Terminal {
    standard: [bool; 3],
    file: Option<OwnedFd>,
    /// The mode as it was, once it has been changed.
    before: Option<Termios>,
}

fn window_of(file: &OwnedFd) -> (u16, u16) {
    termios::tcgetwinsize(file).map_or((0, 0), |size| (size.ws_row, size.ws_col))
}

impl Terminal {
    pub(crate) fn new() -> Self {
        let files = [stdio::stdin(), stdio::stdout(), stdio::stderr()];
        let standard = files.map(termios::isatty);
        let first = files.into_iter().zip(standard).find(|(_, is)| *is);
        let file = first.and_then(|(file, _)| file.try_clone_to_owned().ok());
        let standard = if file.is_some() { standard } else { [false; 3] };
        Self {
            standard,
            file,
            before: None,
        }
    }

    /// No terminal, whatever the standard streams are.
    pub(crate) fn none() -> Self {
        Self {
            standard: [false; 3],
            file: None,
            before: None,
        }
    }

    /// Which of standard input, output and error are the terminal.
    pub(crate) fn standard(&self) -> [bool; 3] {
        self.standard
    }

    pub(crate) fn file(&self) -> Option<&OwnedFd> {
        self.file.as_ref()
    }

    /// Rows and columns; 0 if unknown.
    pub(crate) fn window(&self) -> (u16, u16) {
        self.file.as_ref().map_or((0, 0), window_of)
    }

    /// Reads the same later, in any thread.
    pub(crate) fn window_reader(&self) -> impl Fn() -> (u16, u16) + Send + 'static {
        let file = self.file.as_ref().and_then(|file| file.try_clone().ok());
        move || file.as_ref().map_or((0, 0), window_of)
    }

    /// Leaves everything that a key does to the guest's terminal. Without input the keys stay with
    /// the caller's.
    pub(crate) fn make_raw(&mut self) {
        let Some(file) = self.file.as_ref().filter(|_| self.standard[0]) else {
            return;
        };
        if let Ok(mode) = termios::tcgetattr(file) {
            let mut raw = mode.clone();
            raw.make_raw();
            if termios::tcsetattr(file, OptionalActions::Drain, &raw).is_ok() {
                self.before = Some(mode);
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let (Some(file), Some(mode)) = (&self.file, &self.before) {
            let _ = termios::tcsetattr(file, OptionalActions::Drain, mode);
        }
    }
}
