#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Makes tables and a plot of the rows on standard input, for tests/bench and tests/native-compare.

    bench.py tables             the tables of docs/performance.md, as Markdown
    bench.py compare NAME...    the modules 0.ko, 1.ko ... by device, and the ratio of each to 0.ko
    bench.py plot               a script for gnuplot, which writes SVG on standard output
    bench.py summary            what docs/comparison.md says of the figures, from the tables of
                                docs/performance.md, which standard input is then; tests/documented
                                compares it with the page
    bench.py verdict            the first table of docs/performance.md, from its table "Targets", in
                                the same way

A row is `row ENGINE MTU TEST SIZE DEPTH DEVICE ROUND UNIT FIGURE` (tests/guest/bench.sh). A ratio
is made of the two figures of one round, then the median of the rounds is taken. Above 1 the first
of the two is better, for each unit.
"""
import collections
import re
import statistics
import sys
import textwrap

Cell = collections.namedtuple("Cell", "engine mtu test size depth unit")

# The devices of the guests, in the order of the tables.
NAMES = {
    "riw0": "riwarp",
    "rsiw": "riwarp_siw",
    "siw": "siw",
    "rxe": "rxe",
    "tcp": "TCP",
    "riw1": "riwarp, CRC",
    "rsiw1": "riwarp_siw, CRC",
    "riwt": "riwarp, TLS",
    "riww": "riwarp, WireGuard",
    "tcpt": "TCP, TLS",
    "least": "least work",
    "least1": "least work, CRC",
}
# Those of the plot.
COLOURS = {"riw0": "#c00000", "rsiw": "#e08000", "siw": "#0060c0", "rxe": "#808080", "tcp": "#008040"}
ENGINES = {
    "native": "User-Mode Linux, at the speed of the machine",
    "hosts": "Two hosts of User-Mode Linux, at the speed of the machine",
    "qemu": "QEMU, with the stock kernel",
}
RATIOS = [("riw0", "siw"), ("rsiw", "siw"), ("riw0", "tcp"), ("rsiw", "tcp"), ("riw0", "rxe"),
          ("rsiw", "rxe"), ("riw1", "riw0"), ("rsiw1", "rsiw"), ("riw0", "least"), ("siw", "least"),
          ("riw1", "least1"), ("least1", "least"), ("riwt", "tcpt"), ("riwt", "riww"), ("riwt", "riw0"),
          ("tcpt", "tcp")]

# The ratios that the work on riwarp aims at: MTU, test, octets, depth, the two devices.
BULK = [f"{way}_bw" for way in ("write", "send", "read")]
JOBS = [("nvme_randread", 4096, 32), ("nvme_randwrite", 4096, 32), ("nvme_read", 131072, 8),
        ("nvme_write", 131072, 8), ("nvme_randread", 4096, 1)]
TARGETS = [
    *((1500, test, 1 << 20, 64, mine, "tcp") for test in BULK for mine in ("riw0", "rsiw")),
    *((65536, test, size, 64, mine, "siw") for test, size in [
        ("write_bw", 1 << 20), ("write_bw", 65536), ("send_bw", 1 << 20), ("send_bw", 65536),
        ("read_bw", 1 << 20), ("write_bw", 4096)] for mine in ("riw0", "rsiw")),
    *((65536, test, 64, 1, mine, "siw") for test in ("write_lat", "send_lat", "read_lat")
      for mine in ("riw0", "rsiw")),
    *((mtu, test, 1 << 20, 64, "riw1", "riw0") for mtu in (1500, 65536) for test in BULK),
    *((mtu, *job, "riw0", "tcp") for mtu in (1500, 65536) for job in JOBS),
]


def read(lines):
    """Returns {cell: {device: {round: figure}}}, in the order of the rows."""
    cells = {}
    for line in lines:
        words = line.rstrip("\n").split("\t")
        if words[0] != "row" or len(words) != 10:
            continue
        _, engine, mtu, test, size, depth, device, turn, unit, figure = words
        cell = Cell(engine, int(mtu), test, int(size), depth, unit)
        rounds = cells.setdefault(cell, {}).setdefault(device, {})
        # A device without the operation, or that failed, has no figure.
        if figure.replace(".", "", 1).isdigit() and float(figure) > 0:
            rounds[int(turn)] = float(figure)
    return cells


def ratios(cell, devices, mine, theirs):
    """Returns the ratios of the rounds that both devices have, in order of size."""
    a, b = devices.get(mine, {}), devices.get(theirs, {})
    less_is_better = cell.unit in ("us", "p50", "p99", "instructions")
    return sorted(b[turn] / a[turn] if less_is_better else a[turn] / b[turn] for turn in a.keys() & b.keys())


def of_ratios(found, more=0):
    if not found:
        return "-"
    digits = 2 + more
    spread = f" ({found[0]:.{digits}f} to {found[-1]:.{digits}f})" if len(found) > 1 else ""
    return f"{statistics.median(found):.{digits}f}{spread}"


def of_figures(rounds, more=0):
    """The median, and half of what lies between the lowest and the highest, relative to it."""
    if not rounds:
        return "-"
    middle = statistics.median(rounds.values())
    spread = (max(rounds.values()) - min(rounds.values())) / 2 / middle
    return number(middle) + (f" ±{spread:.{more}%}" if len(rounds) > 1 else "")


def number(x):
    return f"{x:.0f}" if x >= 1000 else f"{x:.3g}"


def size(octets):
    for unit, of in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if octets >= of and octets % of == 0:
            return f"{octets // of} {unit}"
    return str(octets)


def unit(cell):
    return cell.unit + " us" if cell.unit in ("p50", "p99") else cell.unit


def table(heads, rows):
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def order(cell):
    return cell.test, cell.size, len(cell.depth), cell.depth


def what(cell):
    return [cell.test, size(cell.size), cell.depth, unit(cell)]


def tables(cells):
    targets(cells)
    for engine in dict.fromkeys(cell.engine for cell in cells):
        for mtu in dict.fromkeys(cell.mtu for cell in cells if cell.engine == engine):
            part = {cell: cells[cell] for cell in sorted(cells, key=order) if (cell.engine, cell.mtu) == (engine, mtu)}
            there = {device for devices in part.values() for device in devices}
            shown = [device for device in NAMES if device in there]
            print(f"### {ENGINES[engine]}: MTU {mtu}\n")
            table(["test", "octets", "depth", "unit", *(NAMES[device] for device in shown)],
                  [what(cell) + [of_figures(devices.get(device)) for device in shown]
                   for cell, devices in part.items()])
            pairs = [pair for pair in RATIOS if there.issuperset(pair)]
            if pairs:
                table(["test", "octets", "depth", "unit", *(f"{NAMES[a]} : {NAMES[b]}" for a, b in pairs)],
                      [what(cell) + [of_ratios(ratios(cell, devices, *pair)) for pair in pairs]
                       for cell, devices in part.items() if cell.unit != "p99"])


def targets(cells):
    rows = []
    for mtu, test, octets, depth, mine, theirs in TARGETS:
        for cell, devices in cells.items():
            if cell[:5] == ("native", mtu, test, octets, str(depth)) and cell.unit != "p99":
                found = ratios(cell, devices, mine, theirs)
                if found:
                    rows.append([str(mtu), *what(cell), f"{NAMES[mine]} : {NAMES[theirs]}", of_ratios(found)])
    if rows:
        print("### Targets\n")
        table(["MTU", "test", "octets", "depth", "unit", "of", "ratio"], rows)


def compare(cells, names):
    rows = []
    for cell, devices in cells.items():
        for device in dict.fromkeys(device.partition(":")[0] for device in devices):
            row = [str(cell.mtu), cell.test, size(cell.size), cell.depth, device, unit(cell)]
            more = 2 if cell.unit == "instructions" else 0 # digits
            if device in devices: # has no module of ours
                row += [of_figures(devices[device], more)] + ["-"] * (len(names) * 2 - 2)
            else:
                first, *others = modules = [f"{device}:{i}.ko" for i in range(len(names))]
                row += [of_figures(devices.get(module), more) for module in modules]
                row += [of_ratios(ratios(cell, devices, module, first), more) for module in others]
            rows.append(row)
    table(["MTU", "test", "octets", "depth", "device", "unit", *names, *(f"{name} : {names[0]}" for name in names[1:])], rows)


def plot(cells):
    """Write bandwidth by message size: a panel for each MTU, a line for each device."""
    part = {cell: devices for cell, devices in cells.items()
            if cell.engine == "native" and cell.test == "write_bw" and cell.depth == "64"}
    mtus = sorted({cell.mtu for cell in part})
    shown = [device for device in COLOURS if any(device in devices for devices in part.values())]
    if not mtus:
        sys.exit("bench.py: no rows to plot: write_bw of the native engine")
    figures = [x for devices in part.values() for rounds in devices.values() for x in rounds.values()]
    for mtu in mtus:
        for device in shown:
            print(f"${device}_{mtu} << END")
            for cell, devices in sorted(part.items()):
                if cell.mtu == mtu and devices.get(device):
                    print(cell.size, statistics.median(devices[device].values()))
            print("END")
    print(f"""set terminal svg size {330 * len(mtus)},360 font 'sans,12' background 'white'
set termoption noenhanced
set multiplot layout 1,{len(mtus)} title 'RDMA Write in User-Mode Linux: MiB/s by message size'
set logscale xy
set grid
set key bottom right
set xrange [32:2097152]
set xtics ('64' 64, '1 Ki' 1024, '16 Ki' 16384, '1 Mi' 1048576)
set yrange [{min(figures) / 1.5}:{max(figures) * 1.5}]""")
    for mtu in mtus:
        print(f"set title 'MTU {mtu}'")
        lines = (f"${device}_{mtu} with linespoints linewidth 2 linecolor rgb '{COLOURS[device]}' "
                 f"title '{NAMES[device]}'" for device in shown)
        print("plot " + ", ".join(lines))
        print("unset key")
    print("unset multiplot")


class Page:
    """The ratios in the native tables of docs/performance.md."""

    def __init__(self, lines):
        self.commit, self.medians = None, {}
        mtu, heads = None, []
        for line in lines:
            if found := re.match(r"`make bench`, \S+, (commit \w+(?: and changes)?),", line):
                self.commit = found.group(1)
            elif line.startswith("#"):
                found = re.match(rf"### {ENGINES['native']}: MTU (\d+)$", line.rstrip())
                mtu, heads = found and int(found.group(1)), []
            elif mtu and line.startswith("| "):
                words = [word.strip() for word in line.split("|")[1:-1]]
                if words[0] == "test":
                    heads = words
                else:
                    for head, word in zip(heads[4:], words[4:]):
                        if " : " in head and word != "-":
                            self.medians[mtu, *words[:4], head] = word.partition(" ")[0]

    def ratio(self, mtu, test, octets, depth, unit, mine, theirs):
        key = mtu, test, octets, str(depth), unit, f"{NAMES[mine]} : {NAMES[theirs]}"
        if key not in self.medians:
            sys.exit(f"bench.py: the tables have no ratio {' '.join(map(str, key))}")
        return self.medians[key]


def summary(page):
    """Says the same of each run: nothing in these sentences depends on how it went."""

    def bulk(mtu, mine, theirs):
        of = (page.ratio(mtu, test, "1 MiB", 64, "MiB/s", mine, theirs) for test in BULK)
        return "Write {}, Send {}, Read {}".format(*of)

    def by_size(mtu, mine):
        sizes = ["64", "1 KiB", "4 KiB", "16 KiB", "64 KiB", "1 MiB"]
        ratios = [page.ratio(mtu, "write_bw", size, 64, "MiB/s", mine, "siw") for size in sizes]
        return ", ".join(f"{ratio} at {size}" for ratio, size in zip(ratios, ["64 octets", *sizes[1:]]))

    def one(theirs):
        of = (page.ratio(mtu, test, "64", 1, "us", "riw0", theirs) for mtu in (1500, 65536)
              for test in ("write_lat", "send_lat", "read_lat"))
        return "{} to {}".format(*sorted(of, key=float)[::5])

    def crc(mine, without):
        of = (page.ratio(mtu, test, "1 MiB", 64, "MiB/s", mine, without) for mtu in (1500, 65536) for test in BULK)
        return "{} to {}".format(*sorted(of, key=float)[::5])

    text = (f"In short, native, {page.commit}, CRC off, 64 requests outstanding. The figures are the medians of the "
            "tables: riwarp's speed divided by the other's, above 1 riwarp is faster.")
    print(textwrap.fill(text, 118) + "\n")
    for text in [
        f"Messages of 1 MiB, MTU 1500: to TCP alone {bulk(1500, 'riw0', 'tcp')}; to siw {bulk(1500, 'riw0', 'siw')}; "
        f"to rxe {bulk(1500, 'riw0', 'rxe')}.",
        f"Messages of 1 MiB, MTU 65536, that of the loopback interface: to TCP alone {bulk(65536, 'riw0', 'tcp')}; "
        f"to siw {bulk(65536, 'riw0', 'siw')}; to rxe {bulk(65536, 'riw0', 'rxe')}.",
        f"Writes by size, MTU 1500, to siw: with librxe {by_size(1500, 'riw0')}; with libsiw {by_size(1500, 'rsiw')}.",
        f"Writes by size, MTU 65536, to siw: with librxe {by_size(65536, 'riw0')}; with libsiw {by_size(65536, 'rsiw')}.",
        f"The time of one message of 64 octets, at both MTUs: to siw {one('siw')}, to rxe {one('rxe')}. System calls and "
        "the scheduler make most of it.",
        f"What CRCs leave of the bandwidth of messages of 1 MiB, at both MTUs: {crc('riw1', 'riw0')} with librxe, "
        f"{crc('rsiw1', 'rsiw')} with libsiw. siw uses none with its own kind.",
    ]:
        print(textwrap.fill(text, 118, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False))


def verdict(lines):
    """Sums up the table "Targets": what was measured of each group, and how many rows meet it."""
    groups = {}
    rows = [line for line in re.search(r"^### Targets\n\n(.*?)\n\n", "".join(lines), re.M | re.S).group(1).splitlines()]
    for row in rows[2:]:
        mtu, test, octets, _, _, of, ratio = row.split("|")[1:-1]
        mtu, test, octets, of = mtu.strip(), test.strip(), octets.strip(), of.strip().partition(" : ")[2]
        # The median, and the lowest and the highest round, or the same three times.
        found = [float(x) for x in re.findall(r"[\d.]+", ratio)]
        found = found if len(found) == 3 else found * 3
        if of == "riwarp":
            group = "CRCs: what they leave of the bandwidth of 1 MiB", "both", "riwarp without CRC", 0.85
        elif test.startswith("nvme"):
            group = f"NVMe over Fabrics, {octets}", mtu, "NVMe/TCP", 1.0
        elif test.endswith("_lat"):
            group = f"time of a message of {octets} octets", mtu, of, 1.0
        else:
            group = f"bandwidth, messages of {octets}", mtu, of, 1.0
        groups.setdefault(group, []).append(found)
    table(["what", "MTU", "compared with", "target", "measured", "met", "met in the best round"],
          [[what, mtu, of, f"{target:.2f}", f"{min(x[0] for x in found):.2f} to {max(x[0] for x in found):.2f}",
            f"{sum(x[0] >= target for x in found)} of {len(found)}", f"{sum(x[2] >= target for x in found)} of {len(found)}"]
           for (what, mtu, of, target), found in groups.items()])


def main(command="", *names):
    if command == "summary" and not names:
        return summary(Page(sys.stdin))
    if command == "verdict" and not names:
        return verdict(sys.stdin)
    cells = read(sys.stdin)
    if not cells:
        sys.exit("bench.py: no rows")
    if command == "tables" and not names:
        tables(cells)
    elif command == "compare" and names:
        compare(cells, names)
    elif command == "plot" and not names:
        plot(cells)
    else:
        print(f"bench.py: no such command: {' '.join([command, *names])}", file=sys.stderr)
        sys.exit(2)


main(*sys.argv[1:])
