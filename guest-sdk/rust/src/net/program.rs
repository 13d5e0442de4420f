//! One connection after the other: a [`Program`] reads and writes in blocking style.
//!
//! Every wait ends up in [`Driver::turn`]: the node takes what was sent and delivers what has arrived, and the stack acknowledges and runs
//! its timers. Peers that connect meanwhile are served by the stack, but wait to be accepted; datagrams wait to be received.

mod backlog;
mod tcp;
mod udp;

use core::cell::RefCell;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::io::{self, ErrorKind};

use backlog::Backlog;
pub use tcp::TcpStream;
pub use udp::{UdpFlow, UdpSocket};

use super::outbound::Target;
use super::protocols::Taken;
use super::{Datagram, IpVersion, OWN_SLOTS, Settings, Sockets, UdpPeer};
use crate::headers::Headers;
use crate::{Batch, Function, InitError, Packet, Slots, clock};

/// How long the last written data may take to arrive after the program has returned.
const ENDING_NS_MAX: u64 = 10_000_000_000;

/// A program that serves connections one after the other, in blocking style. [`export_program!`](crate::export_program) makes a module of
/// it.
///
/// ```
/// use std::io::{self, BufRead, BufReader, Write};
///
/// use pinion_sdk::InitError;
/// use pinion_sdk::net::testing::play;
/// use pinion_sdk::net::{Net, Program, Settings};
///
/// /// Greets by name.
/// struct Greeter;
///
/// impl Program for Greeter {
///     fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
///         Ok((Self, Settings { tcp_ports: vec![4000], ..Settings::default() }))
///     }
///
///     fn run(&mut self, net: &Net<'_>) -> io::Result<()> {
///         loop {
///             let (mut stream, _peer) = net.accept()?;
///             stream.write_all(b"name? ")?;
///             let mut reader = BufReader::new(stream);
///             let mut name = String::new();
///             reader.read_line(&mut name)?;
///             write!(reader.get_mut(), "hello, {}\n", name.trim())?;
///         }
///     }
/// }
///
/// pinion_sdk::export_program!(Greeter);
///
/// // In a test, a script is called whenever the program waits.
/// let mut client = None;
/// let mut heard = String::new();
/// play::<Greeter>(b"", |network| {
///     let client = *client.get_or_insert_with(|| network.connect("10.0.0.1".parse().unwrap(), "10.0.0.2:4000".parse().unwrap()));
///     heard += str::from_utf8(&network.received(client)).unwrap();
///     if heard == "name? " {
///         network.send(client, b"Ada\n");
///         heard += "Ada\n";
///     }
///     network.is_ended(client)
/// })
/// .unwrap();
/// assert_eq!(heard, "name? Ada\nhello, Ada\n");
/// ```
pub trait Program: Sized + 'static {
    /// Prepares the program from its configuration, as [`Function::init`] does, and returns its settings.
    ///
    /// # Errors
    ///
    /// The error's message goes to the tenant's log, and the configuration is refused.
    fn init(config: &[u8]) -> Result<(Self, Settings), InitError>;

    /// Called for each packet that is not for a socket, while the program waits, as [`Service::packet`](super::Service::packet) is: messages,
    /// ICMP, what is addressed to other ports. The program itself is at work, so its state is not at hand. Without an implementation the
    /// packet is [refused](Sockets::refuse).
    ///
    /// ```
    /// use std::io::{self, Write};
    ///
    /// use pinion_sdk::net::testing::play;
    /// use pinion_sdk::net::{Net, Program, Settings, Sockets};
    /// use pinion_sdk::{InitError, Message, Packet};
    ///
    /// /// Greets over TCP, and answers calls.
    /// struct Greeter;
    ///
    /// impl Program for Greeter {
    ///     fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
    ///         Ok((Self, Settings { tcp_ports: vec![4000], ..Settings::default() }))
    ///     }
    ///
    ///     fn packet(packet: Packet<'_>, sockets: Sockets<'_>) {
    ///         match Message::of(packet) {
    ///             Ok(message) => message.answer(b"hello, caller").expect("it is short"),
    ///             Err(other) => sockets.refuse(other),
    ///         }
    ///     }
    ///
    ///     fn run(&mut self, net: &Net<'_>) -> io::Result<()> {
    ///         net.accept()?.0.write_all(b"hello, client")
    ///     }
    /// }
    ///
    /// let mut answer = Vec::new();
    /// play::<Greeter>(b"", |network| {
    ///     let verdicts = network.harness.deliver(&[&pinion_sdk::testing::message(b"who are you?")]);
    ///     answer = pinion_sdk::testing::payload(&verdicts[0].bytes).to_vec();
    ///     true
    /// })
    /// .unwrap();
    /// assert_eq!(answer, b"hello, caller");
    /// ```
    fn packet(packet: Packet<'_>, sockets: Sockets<'_>) {
        sockets.refuse(packet);
    }

    /// Runs once in each instance. When it returns, the instance ends as soon as all written data was acknowledged, or after 10 s.
    ///
    /// While the program computes without a wait, no segment is answered or acknowledged, and arriving packets fill its slots.
    ///
    /// # Errors
    ///
    /// Any error that the program does not handle itself: it is logged as a warning.
    fn run(&mut self, net: &Net<'_>) -> io::Result<()>;
}

/// A program's connections, and the program itself until it runs: the function that a fake node runs.
pub struct Hosted<P: Program> {
    program: Option<P>,
    backlog: Backlog,
}

impl<P: Program> Hosted<P> {
    /// Gives a packet to the socket that it is for.
    fn receive(&mut self, packet: Packet<'_>, slots: Slots<'_>, now_ns: u64) {
        let protocols = &mut self.backlog.protocols;
        let Ok(headers) = Headers::of(packet.data()) else {
            if !protocols.hear_node(&packet, slots, now_ns) {
                P::packet(packet, Sockets::new(protocols, slots));
            }
            return;
        };
        match protocols.receive(&packet, &headers, slots, now_ns) {
            Taken::Done => {}
            Taken::Datagram(own) => {
                if let Some(datagram) = Datagram::of(packet, &headers, own) {
                    self.backlog.keep(&datagram);
                }
            }
            Taken::Other => {
                let sockets = Sockets::new(protocols, slots).about(&packet, &headers);
                P::packet(packet, sockets);
            }
        }
    }
}

impl<P: Program> Function for Hosted<P> {
    const OWN_SLOTS: u16 = OWN_SLOTS;

    fn init(config: &[u8]) -> Result<Self, InitError> {
        let (program, settings) = P::init(config)?;
        settings.check()?;
        Ok(Self { program: Some(program), backlog: Backlog::new(settings) })
    }

    fn start(&mut self) {
        self.backlog.protocols.start();
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let (slots, now_ns) = (batch.slots(), clock::now_ns());
        self.backlog.protocols.begin_turn();
        for packet in batch {
            self.receive(packet, slots, now_ns);
        }
        self.backlog.turn(slots, now_ns);
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.backlog.deadline_ns()
    }

    fn expire(&mut self, slots: Slots<'_>) {
        let now_ns = clock::now_ns();
        self.backlog.protocols.begin_turn();
        self.backlog.protocols.expire(now_ns);
        self.backlog.turn(slots, now_ns);
    }
}

/// Waits, on a node or in a test.
trait Driver {
    fn backlog(&mut self) -> &mut Backlog;

    /// Waits until a packet arrives, a timer expires, or `until_ns` has come.
    fn turn(&mut self, until_ns: Option<u64>) -> io::Result<()>;
}

/// The sockets of a [`Program`]: peers' connections to its ports, and those that it opens itself.
#[derive(Clone, Copy)]
pub struct Net<'a> {
    driver: &'a RefCell<dyn Driver + 'a>,
}

impl<'a> Net<'a> {
    /// Waits until a peer has connected to any of the program's ports, and returns its connection.
    ///
    /// # Errors
    ///
    /// On a node, none; in a test, that the test is over.
    pub fn accept(&self) -> io::Result<(TcpStream<'a>, SocketAddr)> {
        self.accept_if(None, |_| true)
    }

    /// As [`Net::accept`], but waits no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`Net::accept`].
    pub fn accept_timeout(&self, timeout: Duration) -> io::Result<(TcpStream<'a>, SocketAddr)> {
        self.accept_if(Some(deadline_after(timeout)), |_| true)
    }

    /// Waits until a peer has connected to this port. Peers of other ports wait on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AddrNotAvailable`] if the program does not listen to the port, and as [`Net::accept`].
    pub fn accept_on(&self, port: u16) -> io::Result<(TcpStream<'a>, SocketAddr)> {
        self.accept_at(port, None)
    }

    /// As [`Net::accept_on`], but waits no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`Net::accept_on`].
    pub fn accept_on_timeout(&self, port: u16, timeout: Duration) -> io::Result<(TcpStream<'a>, SocketAddr)> {
        self.accept_at(port, Some(deadline_after(timeout)))
    }

    fn accept_at(&self, port: u16, until_ns: Option<u64>) -> io::Result<(TcpStream<'a>, SocketAddr)> {
        if !self.with(|backlog| backlog.protocols.tcp.listens_to(port)) {
            return Err(ErrorKind::AddrNotAvailable.into());
        }
        self.accept_if(until_ns, |local| local.port() == port)
    }

    fn accept_if(
        &self,
        until_ns: Option<u64>,
        is_wanted: impl Fn(SocketAddr) -> bool,
    ) -> io::Result<(TcpStream<'a>, SocketAddr)> {
        let place = self.wait(until_ns, |backlog| backlog.accepted(&is_wanted))?;
        let stream = TcpStream::new(*self, place);
        let peer = stream.peer_addr();
        Ok((stream, peer))
    }

    /// Opens a connection to an address that the chain is granted, and waits until the peer has accepted it, 10 s at most. Before the
    /// instance's first packet it waits for that, too: an instance runs on behalf of its clients.
    ///
    /// ```
    /// use std::io::{self, Read, Write};
    /// use std::net::SocketAddr;
    ///
    /// use pinion_sdk::InitError;
    /// use pinion_sdk::net::testing::play;
    /// use pinion_sdk::net::{Net, Program, Settings};
    ///
    /// /// Passes a client's question on to a server, and the server's answer back.
    /// struct Relay;
    ///
    /// impl Program for Relay {
    ///     fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
    ///         Ok((Self, Settings { tcp_ports: vec![4000], ..Settings::default() }))
    ///     }
    ///
    ///     fn run(&mut self, net: &Net<'_>) -> io::Result<()> {
    ///         let (mut client, _peer) = net.accept()?;
    ///         let mut server = net.connect("192.0.2.5:7".parse::<SocketAddr>().unwrap())?;
    ///         let mut text = [0; 100];
    ///         let count = client.read(&mut text)?;
    ///         server.write_all(&text[..count])?;
    ///         let count = server.read(&mut text)?;
    ///         client.write_all(&text[..count])
    ///     }
    /// }
    ///
    /// let mut ends = None;
    /// let (mut has_asked, mut asked, mut heard) = (false, Vec::new(), Vec::new());
    /// let ended = play::<Relay>(b"", |network| {
    ///     let (client, server) = *ends.get_or_insert_with(|| {
    ///         let server = network.listen("192.0.2.5:7".parse().unwrap());
    ///         (network.connect("10.0.0.1".parse().unwrap(), "10.0.0.2:4000".parse().unwrap()), server)
    ///     });
    ///     if network.is_connected(server) && !has_asked {
    ///         network.send(client, b"who?");
    ///         network.send(server, b"the server");
    ///         has_asked = true;
    ///     }
    ///     asked.extend(network.received(server));
    ///     heard.extend(network.received(client));
    ///     false
    /// });
    /// ended.unwrap().unwrap();
    /// assert_eq!((&asked[..], &heard[..]), (&b"who?"[..], &b"the server"[..]));
    /// ```
    ///
    /// # Errors
    ///
    /// As the [`ConnectError`](super::ConnectError) in the error says: the node has refused the flow ([`ErrorKind::PermissionDenied`] if
    /// the chain is not granted it), [`ErrorKind::ConnectionRefused`], [`ErrorKind::HostUnreachable`], [`ErrorKind::TimedOut`].
    pub fn connect(&self, to: impl Into<Target>) -> io::Result<TcpStream<'a>> {
        self.connect_until(to.into(), None)
    }

    /// As [`Net::connect`], but waits no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As [`Net::connect`].
    pub fn connect_timeout(&self, to: impl Into<Target>, timeout: Duration) -> io::Result<TcpStream<'a>> {
        self.connect_until(to.into(), Some(deadline_after(timeout)))
    }

    fn connect_until(&self, target: Target, until_ns: Option<u64>) -> io::Result<TcpStream<'a>> {
        self.wait_for_a_way(&target, until_ns)?;
        let id = self.with(|backlog| backlog.connect(target))?;
        let opened = self.wait(until_ns, |backlog| backlog.outcome(id));
        if opened.is_err() {
            self.with(|backlog| backlog.protocols.tcp.abort_by_id(id));
        }
        Ok(TcpStream::new(*self, opened??))
    }

    /// Returns the socket of one of the program's UDP [ports](Settings::udp_ports). Up to 32 datagrams wait there to be received; further
    /// ones are dropped.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AddrNotAvailable`]: the port is not in the settings.
    pub fn udp_socket(&self, port: u16) -> io::Result<UdpSocket<'a>> {
        let has_port = self.with(|backlog| backlog.inbox(port).is_some());
        if has_port { Ok(UdpSocket::new(*self, port)) } else { Err(ErrorKind::AddrNotAvailable.into()) }
    }

    /// Sends a datagram to a peer that has sent one, as [`UdpSocket::send_to`] does.
    ///
    /// # Errors
    ///
    /// As [`UdpSocket::send_to`].
    pub fn send_to(&self, payload: &[u8], peer: &UdpPeer) -> io::Result<()> {
        udp::send(self, payload, peer)
    }

    /// Opens a UDP flow to an address that the chain is granted, and waits until the node has opened it; before the first packet as
    /// [`Net::connect`] does.
    ///
    /// # Errors
    ///
    /// The node has refused the flow, as for [`Net::connect`].
    pub fn udp_flow(&self, to: impl Into<Target>) -> io::Result<UdpFlow<'a>> {
        let target = to.into();
        self.wait_for_a_way(&target, None)?;
        let id = self.with(|backlog| backlog.open_udp(target))?;
        // Closes the flow if there is an error.
        let flow = UdpFlow::new(*self, id);
        self.wait(None, |backlog| backlog.flow_outcome(id))??;
        Ok(flow)
    }

    /// Looks up the addresses of a name, by the [resolvers](Settings::resolvers) of the settings, and waits for the answer, 8 s at most.
    /// Before the first packet it waits for that, as [`Net::connect`] does. Answers are kept, as [`Sockets::resolve`] says.
    ///
    /// # Errors
    ///
    /// As the [`ResolveError`](super::ResolveError) in the error says; [`ErrorKind::NotFound`] if the name does not exist, or has no
    /// address of this version.
    pub fn resolve(&self, name: &str, version: IpVersion) -> io::Result<Vec<IpAddr>> {
        self.wait(None, |backlog| backlog.protocols.has_way().then_some(()))?;
        let id = self.with(|backlog| backlog.protocols.resolve(name, version, None))?;
        Ok(self.wait(None, |backlog| backlog.answer(id))??)
    }

    /// Waits for this long. Meanwhile the stack answers and acknowledges segments as in every wait, where
    /// [`std::thread::sleep`] suspends the whole instance.
    ///
    /// # Errors
    ///
    /// On a node, none; in a test, that the test is over.
    pub fn sleep(&self, duration: Duration) -> io::Result<()> {
        match self.wait(Some(deadline_after(duration)), |_| None::<()>) {
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(()),
            ended => ended,
        }
    }

    fn wait_for_a_way(&self, target: &Target, until_ns: Option<u64>) -> io::Result<()> {
        self.wait(until_ns, |backlog| (target.via.is_some() || backlog.protocols.has_way()).then_some(()))
    }

    /// Waits until `find` finds something. Even without time to wait, what was written leaves, and what has come is looked at.
    fn wait<R>(&self, until_ns: Option<u64>, mut find: impl FnMut(&mut Backlog) -> Option<R>) -> io::Result<R> {
        let mut has_waited = false;
        loop {
            if let Some(found) = self.with(&mut find) {
                return Ok(found);
            }
            if has_waited && until_ns.is_some_and(|until_ns| until_ns <= clock::now_ns()) {
                return Err(ErrorKind::TimedOut.into());
            }
            self.driver.borrow_mut().turn(until_ns)?;
            has_waited = true;
        }
    }

    fn with<R>(&self, look: impl FnOnce(&mut Backlog) -> R) -> R {
        look(self.driver.borrow_mut().backlog())
    }
}

impl fmt::Debug for Net<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Net").finish_non_exhaustive()
    }
}

/// Returns the time at the end of a time-out that begins now.
fn deadline_after(timeout: Duration) -> u64 {
    clock::now_ns().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
}

/// Runs a program to its end, and then until its written data was acknowledged.
fn run_to_the_end<P: Program>(program: &mut P, driver: impl Driver) -> io::Result<()> {
    let driver = RefCell::new(driver);
    let result = program.run(&Net { driver: &driver });
    let mut driver = driver.into_inner();
    let end_ns = clock::now_ns() + ENDING_NS_MAX;
    while clock::now_ns() < end_ns {
        let backlog = driver.backlog();
        let until_ns = match (backlog.is_to_be_acknowledged(), backlog.is_to_be_sent()) {
            (true, _) => end_ns,
            (false, true) => clock::now_ns(),
            (false, false) => break,
        };
        driver.turn(Some(until_ns))?;
    }
    result
}

#[cfg(target_family = "wasm")]
mod node {
    use super::{Backlog, Driver, Hosted, Program, clock, io, run_to_the_end};
    use crate::functions::guest::{FunctionCell, serve};
    use crate::host::calls;
    use crate::packets::pool::{Pool, PoolMemory};
    use crate::{Function, Slots, warn};

    struct Node<'a, P: Program> {
        hosted: &'a mut Hosted<P>,
        pool: &'a Pool<'a>,
    }

    impl<P: Program> Driver for Node<'_, P> {
        fn backlog(&mut self) -> &mut Backlog {
            &mut self.hosted.backlog
        }

        fn turn(&mut self, until_ns: Option<u64>) -> io::Result<()> {
            self.hosted.backlog.turn(Slots::of(self.pool), clock::now_ns());
            let deadline_ns = self.hosted.deadline_ns().into_iter().chain(until_ns).min();
            let fresh = calls::wait(deadline_ns);
            serve(self.hosted, self.pool, fresh);
            Ok(())
        }
    }

    /// `pinion_run` of a program.
    pub fn run_program<P: Program, const SLOTS: usize>(cell: &FunctionCell<Hosted<P>>, memory: &PoolMemory<SLOTS>) {
        let mut cell = cell.borrow_mut();
        let hosted = cell.as_mut().expect("`pinion_init` comes before `pinion_run`, and must succeed");
        let pool = memory.open(Hosted::<P>::OWN_SLOTS);
        hosted.start();
        let mut program = hosted.program.take().expect("`pinion_run` is called once");
        if let Err(error) = run_to_the_end(&mut program, Node { hosted, pool: &pool }) {
            warn!("the program ended: {error}");
        }
        // The node takes what was sent last when this returns.
    }
}

#[cfg(target_family = "wasm")]
pub use node::run_program;

#[cfg(not(target_family = "wasm"))]
mod script {
    use super::{Backlog, Driver, Hosted, Program, clock, io, run_to_the_end};
    use crate::InitError;
    use crate::net::testing::Network;

    /// The longest step of time in which the script is not called.
    const STEP_NS_MAX: u64 = 1_000_000_000;

    struct Played<P: Program, S> {
        network: Network<Hosted<P>>,
        script: S,
    }

    impl<P: Program, S: FnMut(&mut Network<Hosted<P>>) -> bool> Driver for Played<P, S> {
        fn backlog(&mut self) -> &mut Backlog {
            &mut self.network.harness.function().backlog
        }

        fn turn(&mut self, until_ns: Option<u64>) -> io::Result<()> {
            if (self.script)(&mut self.network) {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "the test is over"));
            }
            self.network.step(until_ns.unwrap_or(clock::now_ns() + STEP_NS_MAX));
            Ok(())
        }
    }

    /// Runs a program natively. Calls the script each time the program waits; the test ends when the script returns `true`. The program's
    /// own result is then not an error of this function.
    ///
    /// # Errors
    ///
    /// The program refuses its configuration.
    pub fn play<P: Program>(
        config: &[u8],
        script: impl FnMut(&mut Network<Hosted<P>>) -> bool,
    ) -> Result<io::Result<()>, InitError> {
        let mut network = Network::<Hosted<P>>::new(config)?;
        let program = network.harness.function().program.take();
        let mut program = program.ok_or("the program runs already")?;
        Ok(run_to_the_end(&mut program, Played { network, script }))
    }
}

#[cfg(not(target_family = "wasm"))]
pub use script::play;

/// Makes a Wasm module of a [`Program`], as [`export!`](crate::export) does of a function: with the same exports and the same option
/// `slots`.
///
/// ```
/// # use pinion_sdk::InitError;
/// # use pinion_sdk::net::{Net, Program, Settings};
/// # struct Greeter;
/// # impl Program for Greeter {
/// #     fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> { Ok((Self, Settings::default())) }
/// #     fn run(&mut self, _net: &Net<'_>) -> std::io::Result<()> { Ok(()) }
/// # }
/// pinion_sdk::export_program!(Greeter, slots = 512);
/// ```
#[macro_export]
macro_rules! export_program {
    ($program:ty) => {
        $crate::export_program!($program, slots = $crate::SLOT_COUNT_DEFAULT);
    };
    ($program:ty, slots = $slots:expr) => {
        $crate::__export_module!($crate::net::Hosted<$program>, slots = $slots, run = $crate::net::run_program);
    };
}
