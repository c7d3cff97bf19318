// SPDX-License-Identifier: GPL-2.0

//! A link of two TAP devices on which frames arrive in socket buffers of many shapes.
//!
//! usage: taps SEED NETNS_A NAME_A NETNS_B NAME_B
//!
//! Makes a TAP device in each network namespace (`-` is the caller's own), prints `ready`, and
//! carries frames between them until SIGTERM, SIGINT, or the end of a device. Then it prints what
//! it has written, a number a line.
//!
//! Each device takes checksums and TSO from the stack, so a segment of up to 64 KiB crosses the
//! link in one piece, as on virtio, unless `ethtool -K` turns that off. Two threads, each on a
//! processor of its own, carry the frames of each direction. A TCP connection has one of two
//! manners, by its ports and SEED:
//!
//! * pieces (`IFF_NAPI_FRAGS`): the buffer has a linear part of any length, and up to 17 fragments.
//!   GRO does not merge these frames: tun flushes it after each of them.
//! * whole (`IFF_NAPI`): the buffer is linear and lies in kmalloc's memory, or has a linear part
//!   and large fragments. GRO merges these frames if the device's `gro_flush_timeout` is not 0:
//!   what has payload in its linear part, or is one fragment too many, goes to a `frag_list`. So
//!   that it has something to merge, half of the segments are cut into up to 40 short ones.
//!
//! Linear buffers that lie in pages (O_NONBLOCK) are left out: tun and GRO count those differently.
//!
//! A connection keeps its queue, so its frames stay in order. Packet sockets on both devices make
//! the kernel share and clone the buffers; they are emptied at random times, and while they are
//! full, nothing is cloned.

use std::{
    env,
    ffi::{
        c_char,
        c_int,
        c_short,
        c_uint,
        CString, //
    },
    fs::{
        File,
        OpenOptions, //
    },
    io::{
        self,
        IoSlice,
        Write as _, //
    },
    mem,
    os::fd::{
        AsRawFd as _,
        FromRawFd as _,
        OwnedFd, //
    },
    process::{
        self,
        ExitCode, //
    },
    ptr,
    sync::atomic::{
        AtomicU64,
        Ordering, //
    },
    thread, //
};

/// Protocols of frames, as their headers have them.
const ETH_P_ALL: u16 = libc::ETH_P_ALL as u16;
const ETH_P_IP: u16 = libc::ETH_P_IP as u16;
const ETH_P_IPV6: u16 = libc::ETH_P_IPV6 as u16;
/// A packet socket's option, which the `libc` crate lacks.
const PACKET_IGNORE_OUTGOING: c_int = 23;

/// What a device does for IP, so that frames of up to 64 KiB go through it.
const OFFLOADS: c_uint =
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
/// The number of threads in each direction, and of queues of each manner.
const THREADS: usize = 2;
/// The length of `struct virtio_net_hdr`.
const VNET_LEN: usize = 10;
/// `MAX_SKB_FRAGS` of a kernel with the usual configuration.
const FRAGS: usize = 17;
/// The longest fragment that tun makes.
const PAGE: usize = 4096;
/// A frame and its `struct virtio_net_hdr`.
const BUFFER: usize = VNET_LEN + 65536 + 256;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let [seed, netns_a, name_a, netns_b, name_b] = &args[..] else {
        eprintln!("usage: taps SEED NETNS_A NAME_A NETNS_B NAME_B");
        return ExitCode::FAILURE;
    };
    let Ok(seed) = seed.parse() else {
        eprintln!("taps: {seed} is no number");
        return ExitCode::FAILURE;
    };
    match run(seed, [netns_a, netns_b], [name_a, name_b]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("taps: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(seed: u64, netns: [&str; 2], names: [&str; 2]) -> io::Result<()> {
    let mut signal = 0;
    // SAFETY: `sigemptyset` makes a set of signals valid. A null pointer asks for no old set.
    let ends = unsafe {
        let mut ends = mem::zeroed();
        libc::sigemptyset(&mut ends);
        libc::sigaddset(&mut ends, libc::SIGTERM);
        libc::sigaddset(&mut ends, libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_BLOCK, &ends, ptr::null_mut());
        ends
    };
    let a: &Tap = Box::leak(Box::new(Tap::make(netns[0], names[0])?));
    let b: &Tap = Box::leak(Box::new(Tap::make(netns[1], names[1])?));
    let counts: &Counts = Box::leak(Box::default());
    for index in 0..THREADS {
        for (way, (from, to)) in [(a, b), (b, a)].into_iter().enumerate() {
            let carrier = Carrier {
                from,
                to,
                index,
                processor: (index + way) % THREADS,
                seed,
                random: Random::new(seed + (2 * index + way) as u64),
                counts,
                kind: Kind::Kmalloc,
                kind_left: 0,
            };
            thread::spawn(move || {
                let why = carrier.carry();
                eprintln!("taps: {why}");
                // SAFETY: `kill` has no requirements.
                unsafe { libc::kill(process::id() as i32, libc::SIGTERM) };
            });
        }
    }
    println!("ready");
    io::stdout().flush()?;
    // SAFETY: `ends` is a valid set of signals, and `signal` is writable.
    unsafe { libc::sigwait(&ends, &mut signal) };
    counts.print();
    // The threads end with the process.
    Ok(())
}

/// Returns the result of a system call, or its error.
fn checked(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// A TAP device.
struct Tap {
    /// `THREADS` for frames in pieces, then `THREADS` for whole ones.
    queues: [File; 2 * THREADS],
    /// Packet sockets, which share and clone what arrives.
    listeners: [OwnedFd; 3],
}

impl Tap {
    /// Makes a device in this namespace.
    fn make(netns: &str, name: &str) -> io::Result<Self> {
        thread::scope(|scope| {
            let made = scope.spawn(|| {
                if netns != "-" {
                    let file = File::open(format!("/run/netns/{netns}"))?;
                    // SAFETY: `setns` has no requirements.
                    checked(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) })?;
                }
                Self::make_here(name)
            });
            made.join().expect("the thread ends")
        })
    }

    fn make_here(name: &str) -> io::Result<Self> {
        let mut queues = Vec::new();
        for index in 0..2 * THREADS {
            let frags = if index < THREADS {
                libc::IFF_NAPI_FRAGS
            } else {
                0
            };
            let flags = libc::IFF_TAP
                | libc::IFF_NO_PI
                | libc::IFF_VNET_HDR
                | libc::IFF_MULTI_QUEUE
                | libc::IFF_NAPI
                | frags;
            queues.push(queue(name, flags)?);
        }
        // SAFETY: This request of a TAP device takes a number.
        checked(unsafe { libc::ioctl(queues[0].as_raw_fd(), libc::TUNSETOFFLOAD, OFFLOADS) })?;
        let queues = queues.try_into().expect("so many queues");
        let name = CString::new(name)?;
        // SAFETY: `name` is a string that ends with 0.
        let ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as i32;
        // The first is before IP, which gets clones; the others behind, so IP gets shared buffers.
        let listeners = [
            listener(ifindex, ETH_P_ALL)?,
            listener(ifindex, ETH_P_IP)?,
            listener(ifindex, ETH_P_IPV6)?,
        ];
        Ok(Self { queues, listeners })
    }

    /// Empties the packet sockets; returns how many frames they had.
    fn drain(&self) -> u64 {
        let mut octet = 0_u8;
        let mut drained = 0;
        for fd in &self.listeners {
            // SAFETY: One octet is writable.
            while unsafe {
                let to = (&raw mut octet).cast();
                libc::recv(fd.as_raw_fd(), to, 1, libc::MSG_DONTWAIT) >= 0
            } {
                drained += 1;
            }
        }
        drained
    }
}

/// Makes a queue of a TAP device, and the device with its first queue.
fn queue(name: &str, flags: c_int) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    // SAFETY: All of it may be zero.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::other("the name is too long"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    // The highest flag is the sign.
    request.ifr_ifru.ifru_flags = flags as c_short;
    // SAFETY: This request takes a valid `struct ifreq`, and may write to it.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) })?;
    Ok(file)
}

/// Makes a socket that gets the frames of one protocol that arrive on a device.
fn listener(ifindex: i32, protocol: u16) -> io::Result<OwnedFd> {
    // SAFETY: All of it may be zero.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = ifindex;
    let on: c_int = 1;
    // SAFETY: The descriptor is new, and so owned by nobody. The pointers are to valid values of
    // these lengths.
    unsafe {
        let fd = checked(libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM, 0))?;
        let fd = OwnedFd::from_raw_fd(fd);
        checked(libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            PACKET_IGNORE_OUTGOING,
            (&raw const on).cast(),
            size_of_val(&on) as u32,
        ))?;
        let len = size_of_val(&address) as u32;
        checked(libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len))?;
        Ok(fd)
    }
}

/// What was written.
#[derive(Default)]
struct Counts {
    frames: AtomicU64,
    octets: AtomicU64,
    /// Frames that their device could not take.
    lost: AtomicU64,
    /// Frames that the receiver may split into segments.
    gso: AtomicU64,
    /// Frames whose checksum the sender has left to its device.
    unsummed: AtomicU64,
    /// Frames in so many pieces, the linear part included.
    pieces: [AtomicU64; FRAGS + 2],
    /// Of these, with a linear part that ends in the headers, at the payload, and one octet behind.
    cut_in_headers: AtomicU64,
    cut_at_payload: AtomicU64,
    cut_after_one_octet: AtomicU64,
    /// Segments that were cut into shorter ones, and those.
    cut: AtomicU64,
    short: AtomicU64,
    /// Whole frames by [`Kind`], a segment that was cut as one.
    kmalloc: AtomicU64,
    paged: AtomicU64,
    /// Frames that packet sockets got.
    drained: AtomicU64,
}

fn count(what: &AtomicU64) {
    what.fetch_add(1, Ordering::Relaxed);
}

impl Counts {
    fn print(&self) {
        let one = |name: &str, number: &AtomicU64| {
            println!("{name} {}", number.load(Ordering::Relaxed));
        };
        one("frames", &self.frames);
        one("octets", &self.octets);
        one("lost", &self.lost);
        one("gso", &self.gso);
        one("unsummed", &self.unsummed);
        for (pieces, number) in self.pieces.iter().enumerate().skip(1) {
            one(&format!("pieces-{pieces}"), number);
        }
        one("cut-in-headers", &self.cut_in_headers);
        one("cut-at-payload", &self.cut_at_payload);
        one("cut-after-one-octet", &self.cut_after_one_octet);
        one("cut", &self.cut);
        one("short", &self.short);
        one("kmalloc", &self.kmalloc);
        one("paged", &self.paged);
        one("drained", &self.drained);
    }
}

/// Numbers by Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        let mut this = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            this.next();
        }
        this
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number from `low` to `high`.
    fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() >> 16) as usize % (high - low + 1)
    }
}

/// The buffer of a whole frame.
#[derive(Clone, Copy)]
enum Kind {
    /// Linear, in memory of kmalloc, as far as that is long enough.
    Kmalloc,
    /// If it is longer than a page, a linear part that ends somewhere, and fragments of up to 32
    /// KiB; else as `Kmalloc`.
    Paged,
}

/// What a thread has.
struct Carrier {
    from: &'static Tap,
    to: &'static Tap,
    index: usize,
    processor: usize,
    seed: u64,
    random: Random,
    counts: &'static Counts,
    /// The kind of the next `kind_left` whole frames.
    kind: Kind,
    kind_left: usize,
}

impl Carrier {
    /// Carries frames until a device has gone; returns the error.
    fn carry(mut self) -> io::Error {
        let mut buffer = vec![0_u8; BUFFER];
        loop {
            // A processor that was off line for a while has lost its threads.
            // SAFETY: All of a set may be zero; the one that is passed has this size.
            unsafe {
                let mut set = mem::zeroed();
                libc::CPU_SET(self.processor, &mut set);
                libc::sched_setaffinity(0, size_of_val(&set), &set);
            }
            let from = self.from;
            let queues = [
                &from.queues[self.index],
                &from.queues[self.index + THREADS], //
            ];
            let mut fds = queues.map(|queue| libc::pollfd {
                fd: queue.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            });
            // SAFETY: `fds` is an array of this length.
            if unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as u64, -1) } < 0 {
                return io::Error::last_os_error();
            }
            for queue in queues {
                for _ in 0..64 {
                    match self.carry_one(queue, &mut buffer) {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(error) => return error,
                    }
                }
            }
            if self.random.between(0, 15) == 0 {
                let drained = self.to.drain();
                self.counts.drained.fetch_add(drained, Ordering::Relaxed);
            }
        }
    }

    /// Carries a frame, if there is one.
    fn carry_one(&mut self, queue: &File, buffer: &mut [u8]) -> io::Result<bool> {
        let iov = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        // SAFETY: `iov` is a buffer that is borrowed exclusively.
        let len = unsafe { libc::preadv2(queue.as_raw_fd(), &iov, 1, -1, libc::RWF_NOWAIT) };
        if len < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN) => Ok(false),
                _ => Err(error),
            };
        }
        let len = len as usize;
        if len <= VNET_LEN + 14 {
            return Ok(true);
        }
        let (vnet, frame) = buffer[..len].split_at_mut(VNET_LEN);
        let vnet: &mut [u8; VNET_LEN] = vnet.try_into().expect("this is its length");
        count(&self.counts.frames);
        let octets = &self.counts.octets;
        octets.fetch_add(frame.len() as u64, Ordering::Relaxed);
        if vnet[1] != 0 {
            count(&self.counts.gso);
        }
        if vnet[0] & 1 != 0 {
            count(&self.counts.unsummed);
        }
        let headers = Headers::of(frame);
        let written = if self.in_pieces(headers.ports) {
            self.write_pieces(vnet, frame, headers.len)
        } else {
            self.write_whole(vnet, frame, &headers)
        };
        match written {
            Err(error) if error.raw_os_error() == Some(libc::EBADFD) => Err(error),
            // The device is down, for example.
            Err(_) => {
                count(&self.counts.lost);
                Ok(true)
            }
            Ok(()) => Ok(true),
        }
    }

    /// Returns the manner of a connection, which is the same in both directions.
    fn in_pieces(&self, ports: u16) -> bool {
        Random::new(self.seed ^ u64::from(ports)).between(0, 1) == 0
    }

    /// Returns the kind of the next whole frame.
    fn next_kind(&mut self) -> Kind {
        if self.kind_left == 0 {
            self.kind_left = self.random.between(1, 60);
            self.kind = match self.random.between(0, 1) {
                0 => Kind::Kmalloc,
                _ => Kind::Paged,
            };
        }
        self.kind_left -= 1;
        self.kind
    }

    /// Writes a frame in a random number of pieces of random lengths.
    fn write_pieces(
        &mut self,
        vnet: &mut [u8; VNET_LEN],
        frame: &[u8],
        headers: usize,
    ) -> io::Result<()> {
        let len = frame.len();
        let least = len.saturating_sub(FRAGS * PAGE).max(1);
        let linear = match self.random.between(0, 7) {
            0 => len,
            1 | 2 => headers + 1,
            3 | 4 => headers,
            5 => self.random.between(1, headers),
            _ => self.random.between(1, len),
        };
        let linear = linear.clamp(least, len);
        let mut lengths = vec![linear];
        let mut left = len - linear;
        if left > 0 {
            // With so many fragments, each at least an octet and at most a page.
            let most = left.min(FRAGS);
            let mut fragments = match self.random.between(0, 3) {
                0 => most,
                1 => 1,
                _ => self.random.between(1, most),
            };
            fragments = fragments.max(left.div_ceil(PAGE));
            let small = self.random.between(0, 1) == 0;
            while fragments > 0 {
                fragments -= 1;
                let low = left.saturating_sub(fragments * PAGE).max(1);
                let high = (left - fragments).min(PAGE);
                let high = if small { high.min(low + 8) } else { high };
                let len = if fragments == 0 {
                    left
                } else {
                    self.random.between(low, high)
                };
                lengths.push(len);
                left -= len;
            }
        }
        count(&self.counts.pieces[lengths.len()]);
        if linear < headers {
            count(&self.counts.cut_in_headers);
        } else if linear == headers {
            count(&self.counts.cut_at_payload);
        } else if linear == headers + 1 {
            count(&self.counts.cut_after_one_octet);
        }
        self.write(self.index, vnet, frame, &lengths, headers)
    }

    /// Writes a frame as a whole, or cuts it into several.
    fn write_whole(
        &mut self,
        vnet: &mut [u8; VNET_LEN],
        frame: &[u8],
        headers: &Headers,
    ) -> io::Result<()> {
        let kind = self.next_kind();
        count(match kind {
            Kind::Kmalloc => &self.counts.kmalloc,
            Kind::Paged => &self.counts.paged,
        });
        let payload = &frame[headers.len..];
        // The sum over the payload of a segment without this mark would have to be computed.
        let can_cut = vnet[0] & 1 != 0 && vnet[1] == 0 && headers.plain && payload.len() > 1;
        if !can_cut || self.random.between(0, 1) == 0 {
            return self.write_one(vnet, frame, headers.len, kind);
        }
        let pieces = match self.random.between(0, 2) {
            // More than a buffer has fragments.
            0 => self.random.between(2 * FRAGS, 40),
            _ => self.random.between(2, 8),
        };
        let size = payload.len().div_ceil(pieces);
        count(&self.counts.cut);
        for (i, part) in payload.chunks(size).enumerate() {
            let segment = headers.segment(frame, i, i * size, part);
            self.write_one(vnet, &segment, headers.len, kind)?;
            count(&self.counts.short);
        }
        Ok(())
    }

    /// Writes a frame to this kind of buffer.
    fn write_one(
        &mut self,
        vnet: &mut [u8; VNET_LEN],
        frame: &[u8],
        headers: usize,
        kind: Kind,
    ) -> io::Result<()> {
        let linear = match kind {
            Kind::Kmalloc => frame.len(),
            Kind::Paged => {
                let linear = match self.random.between(0, 2) {
                    0 => headers + 1,
                    1 => headers,
                    _ => self.random.between(headers, frame.len()),
                };
                linear.min(frame.len())
            }
        };
        let queue = self.index + THREADS;
        self.write(queue, vnet, frame, &[frame.len()], linear)
    }

    /// Writes a frame to a queue in pieces of these lengths. Where tun decides how long the linear
    /// part is, it takes `linear`.
    fn write(
        &self,
        queue: usize,
        vnet: &mut [u8; VNET_LEN],
        frame: &[u8],
        lengths: &[usize],
        linear: usize,
    ) -> io::Result<()> {
        let linear = u16::try_from(linear.min(frame.len())).unwrap_or(u16::MAX);
        vnet[2..4].copy_from_slice(&linear.to_ne_bytes());
        let mut rest = frame;
        let mut iov = vec![IoSlice::new(vnet)];
        for len in lengths {
            let (piece, after) = rest.split_at(*len);
            iov.push(IoSlice::new(piece));
            rest = after;
        }
        (&self.to.queues[queue]).write_vectored(&iov).map(drop)
    }
}

/// What of a frame's headers matters here.
struct Headers {
    /// Their length, if the frame is one of TCP, else that of Ethernet's.
    len: usize,
    /// Where TCP's begins.
    tcp: usize,
    /// Both ports added, if the frame is one of TCP.
    ports: u16,
    /// It is a segment of TCP with nothing but data.
    plain: bool,
}

/// Where IP's header begins.
const IP: usize = 14;

impl Headers {
    fn of(frame: &[u8]) -> Self {
        Self::of_tcp(frame).unwrap_or(Self {
            len: IP,
            tcp: IP,
            ports: 0,
            plain: false,
        })
    }

    fn of_tcp(frame: &[u8]) -> Option<Self> {
        const TCP: u8 = 6;
        const ACK: u8 = 0x10;
        let (at, ip_len) = match be16(frame, 12) {
            ETH_P_IP if *frame.get(23)? == TCP => {
                (IP + 4 * usize::from(frame[IP] & 15), be16(frame, 16).into())
            }
            ETH_P_IPV6 if *frame.get(20)? == TCP => (IP + 40, 40 + usize::from(be16(frame, 18))),
            _ => return None,
        };
        let tcp = frame.get(at..at + 20)?;
        let len = at + 4 * usize::from(tcp[12] >> 4);
        (len <= frame.len()).then_some(Self {
            len,
            tcp: at,
            ports: be16(tcp, 0).wrapping_add(be16(tcp, 2)),
            plain: tcp[13] & !PSH == ACK && IP + ip_len == frame.len(),
        })
    }

    /// Returns number `i` of the segments into which one is cut that has these headers; it has the
    /// octets `part` at `offset` of the payload.
    fn segment(&self, frame: &[u8], i: usize, offset: usize, part: &[u8]) -> Vec<u8> {
        let mut segment = [&frame[..self.len], part].concat();
        // What it is shorter by.
        let less = (frame.len() - segment.len()) as u16;
        if be16(frame, 12) == ETH_P_IP {
            put16(&mut segment, 16, be16(frame, 16) - less);
            put16(&mut segment, 18, be16(frame, 18).wrapping_add(i as u16));
            put16(&mut segment, 24, 0);
            let sum = (IP..self.tcp)
                .step_by(2)
                .fold(0, |sum, at| add16(sum, be16(&segment, at)));
            put16(&mut segment, 24, !sum);
        } else {
            put16(&mut segment, 18, be16(frame, 18) - less);
        }
        let tcp = self.tcp;
        let number = u32::from_be_bytes(frame[tcp + 4..tcp + 8].try_into().expect("four octets"));
        let number = number.wrapping_add(offset as u32);
        segment[tcp + 4..tcp + 8].copy_from_slice(&number.to_be_bytes());
        if self.len + offset + part.len() < frame.len() {
            segment[tcp + 13] &= !PSH;
        }
        // The sum of the pseudo header, to which the device adds the segment's.
        put16(
            &mut segment,
            tcp + 16,
            add16(be16(frame, tcp + 16), !less), //
        );
        segment
    }
}

/// TCP's flag, which makes GRO pass on what it has.
const PSH: u8 = 8;

fn be16(octets: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([octets[at], octets[at + 1]])
}

fn put16(octets: &mut [u8], at: usize, value: u16) {
    octets[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Adds as the Internet checksum does.
fn add16(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}
