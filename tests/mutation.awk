# SPDX-License-Identifier: GPL-2.0
#
# Reads tests/mutation.list for tests/mutation:
#
#     awk -v mode=MODE -f tests/mutation.awk tests/mutation.list
#
#   check   checks that each entry is complete, and that its lines occur in its file exactly once
#   list    prints a line per entry: name, file, kernel, suite, why it may survive, between tabs
#   apply   prints the file of the entry `want`, changed
#
# Lines are compared without the blanks at both ends, so that a changed indentation does not matter.

function trim(text) {
	gsub(/^[ \t]+|[ \t]+$/, "", text)
	return text
}

function complain(text) {
	print text >"/dev/stderr"
	bad = 1
}

# Reads a source file once.
function load(file, line, n) {
	if (file in length_of) return
	while ((getline line <file) > 0) {
		source[file, ++n] = line
		bare[file, n] = trim(line)
	}
	close(file)
	length_of[file] = n + 0
}

# Counts how often the lines of the entry occur in its file; `place` is the line before the first.
function find(file, at, i, n) {
	load(file)
	place = -1
	for (at = 0; at + olds <= length_of[file]; at++) {
		if (bare[file, at + 1] != old[1]) continue
		for (i = 2; i <= olds && bare[file, at + i] == old[i]; i++);
		if (i <= olds) continue
		n++
		place = at
	}
	return n + 0
}

function apply(file, i, at, indent) {
	for (i = 1; i <= place; i++) print source[file, i]
	at = place
	for (i = 1; i <= lines; i++) {
		if (kind[i] != "+") {
			at++
			match(source[file, at], /^[ \t]*/)
			indent = substr(source[file, at], 1, RLENGTH)
		}
		if (kind[i] == " ") print source[file, at]
		if (kind[i] == "+") print indent text[i]
	}
	for (i = at + 1; i <= length_of[file]; i++) print source[file, i]
}

function finish(found) {
	if (!filled) return
	if (!("kernel" in field)) field["kernel"] = field["suite"] ~ /^kunit/ ? "uml" : "stock"
	if (mode == "list")
		print field["name"] "\t" field["file"] "\t" field["kernel"] "\t" field["suite"] "\t" field["survives"]
	if (mode == "check" || field["name"] == want) {
		if (field["name"] == "" || field["file"] == "" || field["suite"] == "" || !olds || !changes)
			complain("incomplete mutant " field["name"] " before line " NR)
		else if (field["kernel"] !~ /^(uml|stock|debug|kcsan)$/)
			complain("mutant " field["name"] " for an unknown kernel")
		else if (seen[field["name"]]++)
			complain("two mutants " field["name"])
		else if ((found = find(field["file"])) != 1)
			complain("stale mutant " field["name"] ": " found " such places in " field["file"])
		else if (mode == "apply")
			apply(field["file"])
	}
	split("", field)
	filled = lines = olds = changes = 0
}

/^#/ { next }
/^$/ { finish(); next }
{ filled = 1 }
/^[a-z]+: / {
	colon = index($0, ": ")
	field[substr($0, 1, colon - 1)] = substr($0, colon + 2)
	next
}
/^[-+ ]/ {
	kind[++lines] = substr($0, 1, 1)
	text[lines] = trim(substr($0, 2))
	if (kind[lines] != "+") old[++olds] = text[lines]
	if (kind[lines] != " ") changes++
	next
}
{ complain("line " NR " of the list is none: " $0) }
END {
	finish()
	exit bad
}
