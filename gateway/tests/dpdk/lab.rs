//! DPDK, started once for all tests of the process; and namespaces and veth pairs that are deleted with the test.

use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pinion_gateway::port::dpdk::{self, DpdkPool, Eal, EalConfig, PortConfig};
use pinion_gateway::port::{BufferPool, Port};
use pinion_mma::buffer::Frame;

/// How long anything here may take before it counts as failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Each port on AF_XDP keeps some 2,100 of them.
const BUFFERS: u32 = 32_767;

/// DPDK, for one test at a time.
pub(crate) struct Lab {
    pub(crate) pool: DpdkPool,
    _turn: MutexGuard<'static, ()>,
}

impl Lab {
    pub(crate) fn enter() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        static DPDK: OnceLock<(Eal, Mutex<DpdkPool>)> = OnceLock::new();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(
            rustix::process::geteuid().is_root() && std::path::Path::new("/dev/net/tun").exists(),
            "the port tests make devices and network namespaces: run them as root, where /dev/net/tun exists"
        );
        let (_, pool) = DPDK.get_or_init(|| {
            let config = EalConfig {
                devices: vec!["net_tap0".to_owned(), "net_af_xdp0".to_owned(), "net_ring0".to_owned()],
                buffers: BUFFERS,
                huge_pages: crate::HUGE_PAGES,
                core: None,
            };
            let eal = Eal::start(&config).expect("DPDK starts");
            let pool = DpdkPool::new(&eal, BUFFERS).expect("there is memory for the pool");
            (eal, Mutex::new(pool))
        });
        Self { pool: pool.lock().unwrap_or_else(PoisonError::into_inner).clone(), _turn: turn }
    }

    pub(crate) fn open(&self, device: &str) -> Box<dyn Port> {
        dpdk::open(&PortConfig::new("port", device), &self.pool).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Makes frames of these bytes, in buffers of the pool.
    pub(crate) fn frames(&mut self, contents: &[Vec<u8>]) -> Vec<Frame> {
        let mut buffers = Vec::new();
        assert_eq!(self.pool.take(&mut buffers, contents.len()), contents.len());
        let fill = |(mut buffer, bytes): (pinion_mma::buffer::Buffer, &Vec<u8>)| {
            let len = bytes.len() as u32;
            buffer.bytes_mut(len).copy_from_slice(bytes);
            Frame::new(buffer, len)
        };
        buffers.into_iter().zip(contents).map(fill).collect()
    }

    /// Sends frames by an interface in a namespace, as they are.
    pub(crate) fn send_from(&mut self, namespace: &NetworkNamespace, interface: &str, contents: &[Vec<u8>]) {
        let device = format!("net_af_packet_far,iface={interface}");
        let config = PortConfig { network_namespace: Some(namespace.path()), ..PortConfig::new("far", &device) };
        let mut port = dpdk::open(&config, &self.pool).unwrap_or_else(|error| panic!("{error}"));
        let mut frames = self.frames(contents);
        assert_eq!(port.transmit(&mut frames, &mut self.pool), contents.len());
    }

    /// Returns the bytes of the frames, and their buffers to the pool.
    pub(crate) fn contents(&mut self, frames: Vec<Frame>) -> Vec<Vec<u8>> {
        let contents = frames.iter().map(|frame| frame.bytes().to_vec()).collect();
        let mut buffers = frames.into_iter().map(Frame::into_buffer).collect();
        self.pool.give(&mut buffers);
        contents
    }

    /// Receives until there are `count` frames.
    pub(crate) fn receive(&mut self, port: &mut Box<dyn Port>, count: usize) -> Vec<Vec<u8>> {
        let (mut frames, started) = (Vec::new(), Instant::now());
        while frames.len() < count {
            assert!(started.elapsed() < PATIENCE, "{} of {count} frames came", frames.len());
            port.receive(&mut frames, 32);
        }
        self.contents(frames)
    }

    /// Receives until no frame waits.
    pub(crate) fn receive_all(&mut self, port: &mut Box<dyn Port>) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while port.receive(&mut frames, 32) > 0 {}
        self.contents(frames)
    }

    /// Returns the device's checksum findings for the next frame.
    pub(crate) fn receive_facts(&mut self, port: &mut Box<dyn Port>) -> u16 {
        let (mut frames, started) = (Vec::new(), Instant::now());
        while port.receive(&mut frames, 32) == 0 {
            assert!(started.elapsed() < PATIENCE, "no frame came");
        }
        let facts = frames[0].facts();
        self.contents(frames);
        facts.bits().into()
    }

    /// Gives `interface` an address, and has its kernel ask who is 10.201.0.2, so that what it sends there later comes at once.
    pub(crate) fn introduce(&mut self, port: &mut Box<dyn Port>, namespace: &NetworkNamespace, interface: &str) {
        namespace.address(interface);
        let pinger = namespace.ping(1, 0);
        assert!(self.answer_pings(port, pinger), "{:?}", port.counters());
        self.receive_all(port);
    }

    /// Answers who asks for 10.201.0.2, and echo requests, until the process that sends them ends. Returns whether that process
    /// succeeded.
    pub(crate) fn answer_pings(&mut self, port: &mut Box<dyn Port>, mut pinger: Child) -> bool {
        let (mut frames, started) = (Vec::with_capacity(64), Instant::now());
        let mac = port.facts().mac;
        loop {
            if let Some(status) = pinger.try_wait().expect("the pinger can be waited for") {
                return status.success();
            }
            if started.elapsed() > PATIENCE {
                let _ = pinger.kill();
                let _ = pinger.wait();
                return false;
            }
            port.receive(&mut frames, 64);
            let (mut replies, mut others) = (Vec::new(), Vec::new());
            for mut frame in frames.drain(..) {
                if turn_into_reply(frame.bytes_mut(), mac) {
                    replies.push(frame);
                } else {
                    others.push(frame.into_buffer());
                }
            }
            port.transmit(&mut replies, &mut self.pool);
            self.pool.give(&mut others);
        }
    }
}

/// Turns a question for the address of 10.201.0.2, or an IPv4 echo request, into its reply; leaves anything else unchanged.
fn turn_into_reply(frame: &mut [u8], mac: [u8; 6]) -> bool {
    if frame.len() >= 42 && frame[12..14] == [8, 6] && frame[20..22] == [0, 1] && frame[38..42] == [10, 201, 0, 2] {
        frame.copy_within(6..12, 0);
        frame[6..12].copy_from_slice(&mac);
        frame[21] = 2;
        frame.copy_within(22..32, 32);
        frame[22..32].copy_from_slice(&[&mac[..], &[10, 201, 0, 2]].concat());
        return true;
    }
    let is_request =
        frame.len() >= 42 && frame[12..14] == [8, 0] && frame[14] == 0x45 && frame[23] == 1 && frame[34] == 8;
    if is_request {
        let (destination, source) = frame[..12].split_at_mut(6);
        destination.swap_with_slice(source);
        let (source, destination) = frame[26..34].split_at_mut(4);
        source.swap_with_slice(destination);
        frame[34] = 0;
        // The checksum grows by what the type field lost (RFC 1624).
        let sum = u32::from(u16::from_be_bytes([frame[36], frame[37]])) + 0x0800;
        let folded = (sum & 0xffff) + (sum >> 16);
        frame[36..38].copy_from_slice(&(folded as u16).to_be_bytes());
    }
    is_request
}

/// Runs `ip` with these arguments.
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns whether `ip` with these arguments succeeds.
pub(crate) fn ip_succeeds(arguments: &str) -> bool {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("iproute2 is installed");
    output.status.success()
}

/// A network namespace that is deleted on drop, with the interfaces in it.
pub(crate) struct NetworkNamespace {
    pub(crate) name: String,
}

impl NetworkNamespace {
    pub(crate) fn new(label: &str) -> Self {
        let namespace = Self { name: unique(label) };
        ip(&format!("netns add {}", namespace.name));
        // No frames except those of the test.
        namespace.exec("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
        namespace
    }

    pub(crate) fn path(&self) -> std::path::PathBuf {
        format!("/run/netns/{}", self.name).into()
    }

    pub(crate) fn exec(&self, command: &str) {
        ip(&format!("netns exec {} {command}", self.name));
    }

    /// Gives `interface` the address 10.201.0.1.
    pub(crate) fn address(&self, interface: &str) {
        let name = &self.name;
        // What it knows of a neighbour, it asks for no more.
        self.exec(&format!("sysctl -qw net.ipv4.neigh.{interface}.base_reachable_time_ms=3600000"));
        ip(&format!("-n {name} addr replace 10.201.0.1/24 dev {interface}"));
        ip(&format!("-n {name} link set {interface} up"));
    }

    /// Pings 10.201.0.2 once, without waiting for an answer.
    pub(crate) fn ping_once(&self) {
        ip_succeeds(&format!("netns exec {} ping -n -q -c 1 -W 0.01 10.201.0.2", self.name));
    }

    /// Sends datagrams to these ports of 10.201.0.2, `count` to each, whose payloads begin with `a`, `b`, and so on.
    pub(crate) fn send_datagrams(&self, ports: std::ops::Range<u16>, count: u8) {
        let socket = self.inside(|| {
            let socket = std::net::UdpSocket::bind("10.201.0.1:0").expect("the namespace has this address");
            for letter in (b'a'..).take(count.into()) {
                for port in ports.clone() {
                    socket.send_to(&[letter; 8], ("10.201.0.2", port)).expect("the interface takes a datagram");
                }
            }
            socket
        });
        drop(socket);
    }

    /// Sends a datagram to 10.201.0.2 whose UDP checksum is wrong.
    pub(crate) fn send_wrong_datagram(&self) {
        use rustix::net::{AddressFamily, SendFlags, SocketAddrV4, SocketType, ipproto, sendto, socket};
        let datagram = [0x23, 0x28, 0x23, 0x28, 0, 16, 0xba, 0xad, 0, 0, 0, 0, 0, 0, 0, 0];
        self.inside(|| {
            let socket = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::UDP)).expect("root may have it");
            let to = SocketAddrV4::new([10, 201, 0, 2].into(), 0);
            sendto(&socket, &datagram, SendFlags::empty(), &to).expect("the interface takes a datagram");
        });
    }

    /// Returns how many frames an interface in the namespace has received.
    pub(crate) fn received_by(&self, interface: &str) -> u64 {
        let arguments = format!("-n {} -s -j link show {interface}", self.name);
        let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("iproute2 is installed");
        let shown = String::from_utf8(output.stdout).expect("JSON is text");
        // {"stats64":{"rx":{"bytes":0,"packets":0,...
        let count = shown.split_once("\"rx\":{").and_then(|(_, rx)| rx.split_once("\"packets\":"));
        let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect::<String>();
        count.and_then(|(_, rest)| digits(rest).parse().ok()).unwrap_or_else(|| panic!("no count in {shown}"))
    }

    /// Runs `work` inside the namespace, on a thread of its own.
    fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
        use std::os::fd::AsFd;
        let file = std::fs::File::open(self.path()).expect("the namespace is there");
        let inside = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter it");
            work()
        };
        std::thread::scope(|scope| scope.spawn(inside).join().expect("nothing panics inside"))
    }

    /// Returns the frames that come to an interface in the namespace while `work` is done, when there are `count`.
    pub(crate) fn capture(&self, interface: &str, count: usize, work: impl FnOnce()) -> Vec<Vec<u8>> {
        let file = tempfile::NamedTempFile::new().expect("a file can be made");
        let path = file.path().display().to_string();
        let arguments =
            format!("netns exec {} tcpdump -i {interface} -Q in -U -w {path} -c {count} broadcast", self.name);
        let mut tcpdump = Command::new("ip")
            .args(arguments.split_whitespace())
            .stderr(Stdio::piped())
            .spawn()
            .expect("tcpdump is installed");
        let mut said = std::io::BufReader::new(tcpdump.stderr.take().expect("it is piped"));
        let mut line = String::new();
        while !line.contains("listening") {
            line.clear();
            assert!(std::io::BufRead::read_line(&mut said, &mut line).expect("tcpdump writes text") > 0);
        }
        work();
        let started = Instant::now();
        while tcpdump.try_wait().expect("it can be waited for").is_none() {
            if started.elapsed() > PATIENCE {
                let _ = tcpdump.kill();
                let _ = tcpdump.wait();
                panic!("fewer than {count} frames came");
            }
            std::thread::yield_now();
        }
        frames_of(&std::fs::read(file.path()).expect("the capture was written"))
    }

    /// Connects an interface to a bridge, and returns another interface by which frames come to that bridge.
    pub(crate) fn bridge(&self, interface: &str) -> String {
        let (name, bridge, port, entry) = (&self.name, unique("r"), unique("a"), unique("b"));
        ip(&format!("-n {name} link add {bridge} type bridge forward_delay 0 mcast_snooping 0"));
        ip(&format!("-n {name} link add {port} type veth peer name {entry}"));
        for member in [interface, &port] {
            ip(&format!("-n {name} link set {member} master {bridge}"));
        }
        for up in [&bridge, &port, &entry] {
            ip(&format!("-n {name} link set {up} up"));
        }
        entry
    }

    /// Deletes the namespace, with the interfaces in it.
    pub(crate) fn delete(&self) {
        ip(&format!("netns del {}", self.name));
    }

    /// Starts to ping 10.201.0.2 with a payload of this size.
    pub(crate) fn ping(&self, count: u32, payload_len: u32) -> Child {
        let arguments =
            format!("netns exec {} ping -n -q -c {count} -i 0.005 -W 5 -s {payload_len} 10.201.0.2", self.name);
        Command::new("ip").args(arguments.split_whitespace()).stdout(Stdio::null()).spawn().expect("ping is installed")
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        ip_succeeds(&format!("netns del {}", self.name));
    }
}

/// Returns the frames of a capture file of this machine's byte order.
fn frames_of(capture: &[u8]) -> Vec<Vec<u8>> {
    let (mut rest, mut frames) = (&capture[24..], Vec::new());
    while let Some((header, behind)) = rest.split_first_chunk::<16>() {
        let len = u32::from_ne_bytes(header[8..12].try_into().expect("four bytes")) as usize;
        frames.push(behind[..len].to_vec());
        rest = &behind[len..];
    }
    frames
}

/// A veth pair with its far end in a namespace of its own. Deleted on drop.
pub(crate) struct Veth {
    pub(crate) near: String,
    pub(crate) far: String,
    pub(crate) namespace: NetworkNamespace,
}

impl Veth {
    pub(crate) fn new(label: &str) -> Self {
        let namespace = NetworkNamespace::new(label);
        let veth = Self { near: unique("n"), far: unique("f"), namespace };
        veth.make();
        veth
    }

    /// Makes the interfaces; also again, after they were deleted.
    pub(crate) fn make(&self) {
        ip(&format!("link add {} type veth peer name {} netns {}", self.near, self.far, self.namespace.name));
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", self.near), "1").expect("root may do this");
    }

    pub(crate) fn set_up(&self) {
        ip(&format!("link set {} up", self.near));
        ip(&format!("-n {} link set {} up", self.namespace.name, self.far));
    }

    /// Returns how many frames the kernel dropped as they came to the near end, because its own queue was full.
    pub(crate) fn dropped_on_arrival(&self) -> u64 {
        let count = std::fs::read_to_string(format!("/sys/class/net/{}/statistics/rx_dropped", self.near));
        count.expect("the interface is here").trim().parse().expect("a number")
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        ip_succeeds(&format!("link del {}", self.near));
    }
}

/// Returns a name that no other process or call uses, short enough for an interface.
pub(crate) fn unique(label: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("pt{label}{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}
