// SPDX-License-Identifier: GPL-2.0

//! What the guest is to run.

use rustix::process::Resource;
use std::fmt;

/// The resources whose limits the command takes over. Its locked memory is not limited: RDMA locks
/// what it registers.
pub const RESOURCES: [Resource; 14] = [
    Resource::Cpu,
    Resource::Fsize,
    Resource::Data,
    Resource::Stack,
    Resource::Core,
    Resource::Rss,
    Resource::Nproc,
    Resource::Nofile,
    Resource::As,
    Resource::Sigpending,
    Resource::Msgqueue,
    Resource::Nice,
    Resource::Rtprio,
    Resource::Rttime,
];

/// A link type of the driver: how its devices look to the libraries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkType {
    /// An iWARP device that librxe drives.
    #[default]
    Riwarp,
    /// An iWARP device that libsiw drives.
    Siw,
    /// A device that says it is InfiniBand over Ethernet, which librxe drives.
    Ib,
}

impl LinkType {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Riwarp, Self::Siw, Self::Ib];

    /// The name that `rdma link add ... type` takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Riwarp => "riwarp",
            Self::Siw => "riwarp_siw",
            Self::Ib => "riwarp_ib",
        }
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A command and all that it gets from the process that started riwarp-run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// The command and its arguments.
    pub argv: Vec<Vec<u8>>,
    /// Its environment, each `NAME=VALUE`.
    pub env: Vec<Vec<u8>>,
    /// Its directory, an absolute path.
    pub directory: Vec<u8>,
    /// The directories whose changes reach the machine, absolute paths.
    pub shares: Vec<Vec<u8>>,
    /// The user and the group that it runs as.
    pub user: u32,
    /// See `user`.
    pub group: u32,
    /// Its supplementary groups.
    pub groups: Vec<u32>,
    /// Its umask.
    pub umask: u32,
    /// Its resource limits: the soft and the hard limit of each of [`RESOURCES`], `u64::MAX` for
    /// none.
    pub limits: Vec<(u64, u64)>,
    /// Which of its standard input, output and error are its terminal.
    pub terminal: [bool; 3],
    /// Rows and columns of that.
    pub window: (u16, u16),
    /// Which guest this is, and of how many: 1 to `hosts`.
    pub host: u32,
    /// See `host`.
    pub hosts: u32,
    /// What /proc/cpuinfo says in the guest: the machine's text for as many processors. The guest's
    /// kernel leaves out most, its processors have it all.
    pub processors: Vec<u8>,
    /// The rules by which requests fail on purpose, of each device (docs/inject.md).
    pub rules: Vec<u8>,
    /// The devices are strict (docs/strict.md).
    pub strict: bool,
    /// The number of devices beside that on the loopback interface.
    pub devices: u32,
    /// Their link type.
    pub link_type: LinkType,
    /// The MTU of their interfaces.
    pub mtu: u32,
}

/// Appends values to the octets of a job.
struct Pack(Vec<u8>);

impl Pack {
    fn number(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn octets(&mut self, octets: &[u8]) {
        self.number(octets.len() as u64);
        self.0.extend(octets);
    }

    fn list<T>(&mut self, items: &[T], mut one: impl FnMut(&mut Self, &T)) {
        self.number(items.len() as u64);
        items.iter().for_each(|item| one(self, item));
    }
}

/// Takes values from the octets of a job; `None` where they end too early or say what cannot be.
struct Unpack<'a>(&'a [u8]);

impl Unpack<'_> {
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Option<T> {
        self.number()?.try_into().ok()
    }

    fn octets(&mut self) -> Option<Vec<u8>> {
        let length = self.small()?;
        let (octets, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(octets.to_vec())
    }

    fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        (0..self.number()?).map(|_| one(self)).collect()
    }
}

impl Job {
    /// The octets of the job, for [`Frame::Job`](crate::Frame::Job).
    pub fn to_octets(&self) -> Vec<u8> {
        let mut pack = Pack(Vec::new());
        for list in [&self.argv, &self.env, &self.shares] {
            pack.list(list, |pack, text| pack.octets(text));
        }
        pack.octets(&self.directory);
        pack.octets(&self.processors);
        pack.octets(&self.rules);
        for number in [
            self.user,
            self.group,
            self.umask,
            self.host,
            self.hosts,
            self.devices,
            self.mtu,
        ] {
            pack.number(number.into());
        }
        pack.list(&self.groups, |pack, group| pack.number((*group).into()));
        pack.list(&self.limits, |pack, &(soft, hard)| {
            pack.number(soft);
            pack.number(hard);
        });
        for flag in self.terminal.into_iter().chain([self.strict]) {
            pack.number(flag.into());
        }
        pack.number(self.window.0.into());
        pack.number(self.window.1.into());
        pack.number(self.link_type as u64);
        pack.0
    }

    /// The job of these octets; `None` if they are not those of a job.
    pub fn from_octets(octets: &[u8]) -> Option<Self> {
        let mut unpack = Unpack(octets);
        let argv = unpack.list(Unpack::octets)?;
        let env = unpack.list(Unpack::octets)?;
        let shares = unpack.list(Unpack::octets)?;
        let directory = unpack.octets()?;
        let processors = unpack.octets()?;
        let rules = unpack.octets()?;
        let [user, group, umask, host, hosts, devices, mtu] = {
            let mut numbers = [0; 7];
            for number in &mut numbers {
                *number = unpack.small()?;
            }
            numbers
        };
        let groups = unpack.list(Unpack::small)?;
        let limits = unpack.list(|unpack| Some((unpack.number()?, unpack.number()?)))?;
        let mut terminal = [false; 3];
        for flag in &mut terminal {
            *flag = unpack.number()? != 0;
        }
        let strict = unpack.number()? != 0;
        let window = (unpack.small()?, unpack.small()?);
        let link_type = *LinkType::ALL.get(unpack.small::<usize>()?)?;
        let job = Self {
            argv,
            env,
            directory,
            shares,
            user,
            group,
            groups,
            umask,
            limits,
            terminal,
            window,
            host,
            hosts,
            processors,
            rules,
            strict,
            devices,
            link_type,
            mtu,
        };
        (unpack.0.is_empty() && !job.argv.is_empty()).then_some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            argv: vec![b"sh".to_vec(), b"-c".to_vec(), b"".to_vec()],
            env: vec![b"A=\xff\n".to_vec()],
            directory: b"/a b".to_vec(),
            shares: vec![b"/x".to_vec(), b"/y".to_vec()],
            user: u32::MAX,
            group: 1,
            groups: vec![4, 5],
            umask: 0o27,
            limits: vec![(1024, u64::MAX)],
            terminal: [true, false, true],
            window: (24, 80),
            host: 2,
            hosts: 3,
            processors: b"cpu MHz : 2000\n".to_vec(),
            rules: b"do=reset".to_vec(),
            strict: true,
            devices: 4,
            link_type: LinkType::Ib,
            mtu: 1500,
        }
    }

    #[test]
    fn jobs_are_read_as_they_were_written() {
        assert_eq!(Job::from_octets(&job().to_octets()), Some(job()));
    }

    #[test]
    fn other_octets_are_no_job() {
        let octets = job().to_octets();
        for length in 0..octets.len() {
            assert_eq!(Job::from_octets(&octets[..length]), None, "{length}");
        }
        assert_eq!(Job::from_octets(&[&octets[..], &[0]].concat()), None);
        // A list of more items than memory has.
        assert_eq!(Job::from_octets(&[0xff; 64]), None);
        // A job without a command.
        assert_eq!(Job::from_octets(&Job::default().to_octets()), None);
    }
}
