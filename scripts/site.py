#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What scripts/docs needs around mdBook, in the checkout's directory.

    site.py stage DIR    writes book.toml, the pages with SUMMARY.md, and the files that they link to
    site.py check DIR    prints each link of the HTML pages in DIR that leads nowhere
"""
import glob
import html.parser
import os
import re
import shutil
import sys
import urllib.parse

LINK = r"\[([^\]]*)\]\((?!\w+:)([^)\s#]+)"
BOOK = """[book]
title = "riwarp"
language = "en"
src = "src"

[build]
build-dir = "book"
# One of these would rename README.md, and not the links to it.
use-default-preprocessors = false

[output.html]
no-section-label = true
"""


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def title(path):
    return re.search(r"^# (.*)$", read(path), re.M).group(1)


def links(path):
    """The files that a page links to, from the top of the checkout."""
    folder = os.path.dirname(path)
    return {os.path.normpath(os.path.join(folder, target)) for _, target in re.findall(LINK, read(path))}


def stage(out):
    """The chapters are README.md's list; those beside the sources come after it, by folder."""
    documentation = read("README.md").partition("\n## Documentation\n")[2]
    summary, listed = ["# Summary", "", "[riwarp](README.md)", ""], ["README.md"]
    for part in re.findall(r"^\* (.*?)(?=^\* |^\S|\Z)", documentation, re.M | re.S):
        summary += ["# " + re.match(r"\*\*(.*?)\*\*", part).group(1), ""]
        for name, page in re.findall(LINK, " ".join(part.split())):
            summary.append(f"- [{name[0].upper()}{name[1:]}]({page})")
            listed.append(page)
        summary.append("")
    summary += ["# Beside the sources", ""]
    folders = ["SECURITY.md", "CHANGELOG.md", "qemu/README.md", "uml/README.md"]
    for page in folders + sorted(glob.glob("tests/**/README.md", recursive=True)):
        summary.append(f"- [{title(page)}]({page})")
        listed.append(page)
    missing = sorted(set(glob.glob("docs/*.md")) - set(listed))
    if missing:
        sys.exit(f"README.md does not list {', '.join(missing)} under Documentation")
    for page in listed:
        write(f"{out}/src/{page}", read(page))
        for path in links(page) - set(listed):
            if os.path.isfile(path):
                os.makedirs(os.path.dirname(f"{out}/src/{path}"), exist_ok=True)
                shutil.copy(path, f"{out}/src/{path}")
    write(f"{out}/src/SUMMARY.md", "\n".join(summary) + "\n")
    write(f"{out}/book.toml", BOOK)


class Page(html.parser.HTMLParser):
    """The links of a page, and the places that links may name."""

    def __init__(self, path):
        super().__init__()
        self.links, self.places = [], set()
        self.feed(read(path))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.places.update(attrs[name] for name in ("id", "name") if attrs.get(name))
        self.links += [attrs[name] for name in ("href", "src") if attrs.get(name)]


def check(out):
    # 404.html has its links from the root of a server, print.html those of all pages.
    paths = glob.glob(f"{out}/**/*.html", recursive=True)
    pages = {path: Page(path) for path in paths if os.path.basename(path) not in ("404.html", "print.html", "toc.html")}
    bad = 0
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            file = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(parts.path))) if parts.path else path
            place = urllib.parse.unquote(parts.fragment)
            if not os.path.isfile(file) or (place and file in pages and place not in pages[file].places):
                bad += 1
                print(f"{os.path.relpath(path, out)}: {link} leads nowhere")
    print(f"{len(pages)} pages, {sum(len(page.links) for page in pages.values())} links, {bad} lead nowhere")
    if bad or not pages:
        sys.exit(1)


if __name__ == "__main__":
    {"stage": stage, "check": check}[sys.argv[1]](sys.argv[2])
