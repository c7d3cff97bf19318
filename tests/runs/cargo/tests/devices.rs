// SPDX-License-Identifier: GPL-2.0

#[test]
fn devices_are_there() {
    let mut names = uses_verbs::devices();
    names.sort();
    assert_eq!(names, ["riw0", "riw_lo"]);
}
