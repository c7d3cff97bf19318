// SPDX-License-Identifier: GPL-2.0

//! The command line.

use lexopt::prelude::*;
use riwarp_run::LinkType;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) const USAGE: &str = "\
riwarp-run [OPTION...] [--] COMMAND [ARG...]: runs COMMAND over this machine's root file system in a
guest that has RDMA devices, as an ordinary user, without KVM.

  --hosts N      run COMMAND in N guests, host1 to hostN, each with HOST=1 to N, on one network, 1 to 8
                 (1)
  --devices N    devices riw0, riw1, ... on interfaces eth0, eth1, ... (1); riw_lo is on lo
  --type T       their link type: riwarp, riwarp_siw or riwarp_ib (riwarp)
  --mtu M        MTU of the interfaces, 1280 to 65535 (1500)
  --cpus N       processors of the guest, 1 to 4 (2, or 1 if this process has no more)
  --mem M        memory of the guest, as 512M or 4G (half of what this process may use, at most 4G)
  --timeout S    end COMMAND after S seconds, with status 124
  --share DIR    what COMMAND changes in DIR stays, as in the current directory; may be repeated
  --inject FILE  let requests fail on purpose, by the rules of FILE (docs/inject.md)
  --strict       look for what COMMAND does wrong although it goes well (docs/strict.md)
  --root         run COMMAND as the guest's root
  --log FILE     write the messages of the guest's kernel to FILE, of several guests to FILE.1 ...
  --help, --version

The exit status is that of COMMAND, 128 + N if signal N ended it, 127 if there is no COMMAND, 126 if
it cannot be executed, 125 if riwarp-run failed, 124 if the time was up, 123 if the guest's kernel
reported a fault, 122 if --strict has found something. riwarp-run(1) has the rest.
";

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) hosts: u32,
    pub(crate) devices: u32,
    pub(crate) link_type: LinkType,
    pub(crate) mtu: u32,
    /// `None` for as many as serve best.
    pub(crate) processors: Option<u32>,
    /// Octets.
    pub(crate) memory: Option<u64>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) shares: Vec<PathBuf>,
    pub(crate) root: bool,
    pub(crate) inject: Option<PathBuf>,
    pub(crate) strict: bool,
    pub(crate) log: Option<PathBuf>,
    /// Not empty.
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug)]
pub(crate) enum Request {
    Run(Options),
    Help,
    Version,
}

/// The least memory with which a guest starts: 64 MiB.
pub(crate) const LEAST_MEMORY: u64 = 64 << 20;

fn in_range(range: std::ops::RangeInclusive<u32>) -> impl Fn(&str) -> Result<u32, String> {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("not a number from {} to {}", range.start(), range.end()))
    }
}

fn memory(text: &str) -> Result<u64, String> {
    let unit = |text: &str, shift: u32| text.parse::<u64>().ok()?.checked_mul(1 << shift);
    let octets = match text.split_at_checked(text.len().saturating_sub(1)) {
        Some((number, "M")) => unit(number, 20),
        Some((number, "G")) => unit(number, 30),
        _ => None,
    };
    let octets = octets.ok_or("not a number of M or G")?;
    if octets < LEAST_MEMORY {
        return Err("a guest needs at least 64M".into());
    }
    Ok(octets)
}

fn link_type(text: &str) -> Result<LinkType, String> {
    let known = LinkType::ALL.into_iter().find(|known| known.name() == text);
    known.ok_or_else(|| "neither riwarp, riwarp_siw nor riwarp_ib".into())
}

/// The value of an option.
fn value<T>(
    parser: &mut lexopt::Parser,
    name: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<T, lexopt::Error> {
    let text = parser.value()?.string()?;
    parse(&text).map_err(|why| format!("{name} {text}: {why}").into())
}

/// What the arguments ask for.
///
/// # Errors
///
/// Those of lexopt, which name the option.
pub(crate) fn parse(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Request, lexopt::Error> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut options = Options {
        hosts: 1,
        devices: 1,
        link_type: LinkType::default(),
        mtu: 1500,
        processors: None,
        memory: None,
        timeout: None,
        shares: Vec::new(),
        root: false,
        inject: None,
        strict: false,
        log: None,
        command: Vec::new(),
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Long("hosts") => options.hosts = value(&mut parser, "--hosts", in_range(1..=8))?,
            Long("devices") => options.devices = value(&mut parser, "--devices", in_range(1..=16))?,
            Long("type") => options.link_type = value(&mut parser, "--type", link_type)?,
            Long("mtu") => options.mtu = value(&mut parser, "--mtu", in_range(1280..=65535))?,
            Long("cpus") => {
                options.processors = Some(value(&mut parser, "--cpus", in_range(1..=4))?)
            }
            Long("mem") => options.memory = Some(value(&mut parser, "--mem", memory)?),
            Long("timeout") => {
                let seconds = value(&mut parser, "--timeout", in_range(1..=u32::MAX))?;
                options.timeout = Some(Duration::from_secs(seconds.into()));
            }
            Long("share") => options.shares.push(parser.value()?.into()),
            Long("inject") => options.inject = Some(parser.value()?.into()),
            Long("strict") => options.strict = true,
            Long("root") => options.root = true,
            Long("log") => options.log = Some(parser.value()?.into()),
            Short('h') | Long("help") => return Ok(Request::Help),
            Long("version") => return Ok(Request::Version),
            // The first word that is no option is the command, whose options are its own.
            Value(command) => {
                options.command.push(command);
                options.command.extend(parser.raw_args()?);
            }
            other => return Err(other.unexpected()),
        }
    }
    if options.command.is_empty() {
        return Err("no COMMAND; --help says more".into());
    }
    Ok(Request::Run(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        match parse(line.split_whitespace().map(OsString::from)) {
            Ok(Request::Run(options)) => Ok(options),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn options_end_where_the_command_begins() {
        for line in ["--devices 2 sh -c --root", "--devices=2 -- sh -c --root"] {
            let options = parsed(line).unwrap();
            assert_eq!(options.command, ["sh", "-c", "--root"], "{line}");
            assert_eq!((options.devices, options.root), (2, false), "{line}");
        }
        assert_eq!(parsed("-- --root").unwrap().command, ["--root"]);
    }

    #[test]
    fn defaults_are_those_of_the_usage() {
        let options = parsed("true").unwrap();
        assert_eq!((options.devices, options.mtu), (1, 1500));
        assert_eq!(
            (options.memory, options.timeout, options.processors),
            (None, None, None)
        );
        assert_eq!(options.link_type.name(), "riwarp");
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        for (line, part) in [
            ("--hosts 9 x", "--hosts 9: not a number from 1 to 8"),
            ("--devices 0 x", "0"),
            ("--devices 17 x", "from 1 to 16"),
            ("--mtu 1279 x", "1279"),
            ("--cpus 5 x", "from 1 to 4"),
            ("--mem 512 x", "M or G"),
            ("--mem 63M x", "at least 64M"),
            ("--mem 99999999999999G x", "M or G"),
            ("--type siw x", "riwarp_siw"),
            ("--timeout 0 x", "from 1"),
            ("--stric x", "--stric"),
            ("--devices", "--devices"),
            ("", "COMMAND"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
        assert_eq!(parsed("--mem 64M x").unwrap().memory, Some(64 << 20));
        assert_eq!(parsed("--mem 3G x").unwrap().memory, Some(3 << 30));
    }
}
