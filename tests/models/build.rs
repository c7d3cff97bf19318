// SPDX-License-Identifier: GPL-2.0

//! Copies the sources that are modelled, without what only a kernel or a module file can have:
//! their KUnit suites, which are at their ends, and the comments of the file.

use std::{
    env,
    fs,
    path::Path, //
};

fn main() {
    let out = env::var("OUT_DIR").expect("cargo sets it");
    for (name, path) in [
        ("serial_task.rs", "../../rust/sync/serial_task.rs"),
        ("counts.rs", "../../rust/sync/bh_revocable/counts.rs"),
        ("rxe_queue.rs", "../../src/abi/rxe/queue.rs"),
        ("siw_ring.rs", "../../src/abi/siw/ring.rs"),
    ] {
        println!("cargo:rerun-if-changed={path}");
        let text = fs::read_to_string(path).expect("a source of the module");
        let code: Vec<&str> = text
            .lines()
            .take_while(|line| !line.starts_with("#[kernel::prelude::kunit_tests"))
            .filter(|line| !line.starts_with("//!"))
            .collect();
        fs::write(Path::new(&out).join(name), code.join("\n")).expect("OUT_DIR is writable");
    }
    println!("cargo:rustc-cfg=CONFIG_KUNIT=\"y\"");
}
