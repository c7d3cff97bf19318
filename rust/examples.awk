# SPDX-License-Identifier: GPL-2.0
#
# Makes a KUnit suite of the examples in the documentation of rust/: each block of code there that
# is marked by nothing but its three backticks. A line that begins with "# " is code that the
# documentation does not show.

BEGIN {
	print "// Made from the documentation of rust/ by rust/examples.awk.\n"
	print "#[allow(dead_code)]"
	print "#[kernel::prelude::kunit_tests(riwarp_examples)]"
	print "mod examples {"
	print "    use kernel::prelude::*;"
}
FNR == 1 {
	name = FILENAME
	sub(/^(.*\/)?rust\//, "", name)
	sub(/\.rs$/, "", name)
	gsub(/\//, "_", name)
	number = 0
}
/^ *\/\/[\/!] ```/ {
	if (block == "code") print "        Ok(())\n    }"
	if (block) { block = ""; next }
	block = $0 ~ /```$/ ? "code" : "other"
	if (block == "code") {
		printf "\n    // %s:%d\n    #[test]\n    fn %s_%d() -> Result {\n", FILENAME, FNR, name, ++number
	}
	next
}
block == "code" {
	sub(/^ *\/\/[\/!] ?/, "")
	sub(/^# /, "")
	print
}
END { print "}" }
