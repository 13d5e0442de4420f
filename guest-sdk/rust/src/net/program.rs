//! One connection after the other: a [`Program`] reads and writes in blocking style.
//!
//! Every wait ends up in [`Driver::turn`]: the node takes what was sent and delivers what has arrived, and the stack acknowledges and runs
//! its timers. Peers that connect meanwhile are served by the stack, but wait to be accepted.

use core::cell::RefCell;
use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};

use super::stack::{News, Stack};
use super::{OWN_SLOTS, Settings, Sockets, Stream};
use crate::headers::Headers;
use crate::{Batch, Function, InitError, Slots, clock};

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
/// use pinion_sdk::net::{Program, Settings, TcpListener};
///
/// /// Greets by name.
/// struct Greeter;
///
/// impl Program for Greeter {
///     fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
///         Ok((Self, Settings { tcp_ports: vec![4000], ..Settings::default() }))
///     }
///
///     fn run(&mut self, listener: &TcpListener<'_>) -> io::Result<()> {
///         loop {
///             let (mut stream, _peer) = listener.accept()?;
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

    /// Runs once in each instance. When it returns, the instance ends as soon as all written data was acknowledged, or after 10 s.
    ///
    /// While the program computes without a wait, no segment is answered or acknowledged, and arriving packets fill its slots.
    ///
    /// # Errors
    ///
    /// Any error that the program does not handle itself: it is logged as a warning.
    fn run(&mut self, listener: &TcpListener<'_>) -> io::Result<()>;
}

/// A program's connections, and the program itself until it runs: the function that a fake node runs.
pub struct Hosted<P: Program> {
    program: Option<P>,
    backlog: Backlog,
}

/// The connections, and those not accepted yet.
struct Backlog {
    stack: Stack,
    waiting: VecDeque<u16>,
}

impl Backlog {
    /// Sends what is ready to be sent, and records new connections.
    fn turn(&mut self, slots: Slots<'_>, now_ns: u64) {
        while let Some(place) = self.stack.next_touched() {
            match self.stack.look(place, now_ns) {
                News::Opened => self.waiting.push_back(place),
                News::Ready if self.stack.is_closed(place) => self.forget(place),
                News::Ready | News::None => {}
            }
            self.stack.settle(place, slots, now_ns);
        }
    }

    /// Releases the slot of a peer that has reset its connection before it was accepted.
    fn forget(&mut self, place: u16) {
        if let Some(at) = self.waiting.iter().position(|waiting| *waiting == place) {
            self.waiting.remove(at);
            self.stack.leave(place);
        }
    }
}

impl<P: Program> Function for Hosted<P> {
    const OWN_SLOTS: u16 = OWN_SLOTS;

    fn init(config: &[u8]) -> Result<Self, InitError> {
        let (program, settings) = P::init(config)?;
        settings.check()?;
        let waiting = VecDeque::with_capacity(settings.connections_max.into());
        Ok(Self { program: Some(program), backlog: Backlog { stack: Stack::new(settings), waiting } })
    }

    fn start(&mut self) {
        self.backlog.stack.start();
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let (slots, now_ns) = (batch.slots(), clock::now_ns());
        self.backlog.stack.begin_turn();
        for packet in batch {
            let Ok(headers) = Headers::of(packet.data()) else { continue };
            if !self.backlog.stack.receive(&packet, &headers, slots, now_ns) {
                Sockets::about(&packet, &headers, slots).refuse(packet);
            }
        }
        self.backlog.turn(slots, now_ns);
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.backlog.stack.deadline_ns()
    }

    fn expire(&mut self, slots: Slots<'_>) {
        let now_ns = clock::now_ns();
        self.backlog.stack.begin_turn();
        self.backlog.stack.expire(now_ns);
        self.backlog.turn(slots, now_ns);
    }
}

/// Waits, on a node or in a test.
trait Driver {
    fn backlog(&mut self) -> &mut Backlog;

    /// Waits until a packet arrives, a timer expires, or `until_ns` has come.
    fn turn(&mut self, until_ns: Option<u64>) -> io::Result<()>;
}

/// The connections that wait to be accepted.
#[derive(Clone, Copy)]
pub struct TcpListener<'a> {
    driver: &'a RefCell<dyn Driver + 'a>,
}

impl<'a> TcpListener<'a> {
    /// Waits until a peer has connected, and returns its connection.
    ///
    /// # Errors
    ///
    /// On a node, none; in a test, that the test is over.
    pub fn accept(&self) -> io::Result<(TcpStream<'a>, SocketAddr)> {
        loop {
            let place = self.driver.borrow_mut().backlog().waiting.pop_front();
            if let Some(place) = place {
                let stream = TcpStream { listener: *self, place, read_timeout: None };
                let peer = stream.peer_addr();
                return Ok((stream, peer));
            }
            self.driver.borrow_mut().turn(None)?;
        }
    }

    fn with<R>(&self, look: impl FnOnce(&mut Stack) -> R) -> R {
        look(&mut self.driver.borrow_mut().backlog().stack)
    }
}

impl fmt::Debug for TcpListener<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener").finish_non_exhaustive()
    }
}

/// A connection of a [`Program`]. When it is dropped, written data is sent, and data that the peer still sends is discarded.
pub struct TcpStream<'a> {
    listener: TcpListener<'a>,
    place: u16,
    read_timeout: Option<Duration>,
}

impl TcpStream<'_> {
    /// Returns the peer's address and port.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.listener.with(|stack| stack.ends(self.place).0)
    }

    /// Returns the local address and port, which the peer has connected to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.with(|stack| stack.ends(self.place).1)
    }

    /// Sets how long a read waits before it fails with [`ErrorKind::TimedOut`]. `None` sets no limit but [`Settings::idle_timeout_ns`].
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.read_timeout = timeout;
    }

    /// Sends the written data, then a FIN. The peer may still send.
    pub fn shutdown(&mut self) {
        self.look(|stream| stream.shutdown());
    }

    fn look<R>(&mut self, look: impl FnOnce(&mut Stream<'_>) -> R) -> R {
        self.listener.with(|stack| {
            let result = look(&mut Stream::new(stack, self.place));
            stack.hurry(self.place);
            result
        })
    }

    /// Repeats `work` until it need not wait.
    fn wait<R>(
        &mut self,
        until_ns: Option<u64>,
        mut work: impl FnMut(&mut Stream<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            // Work that would block has changed nothing that the peer must be informed of.
            match self.listener.with(|stack| work(&mut Stream::new(stack, self.place))) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => {
                    self.listener.with(|stack| stack.hurry(self.place));
                    return done;
                }
            }
            if until_ns.is_some_and(|until_ns| until_ns <= clock::now_ns()) {
                return Err(ErrorKind::TimedOut.into());
            }
            self.listener.driver.borrow_mut().turn(until_ns)?;
        }
    }
}

impl Read for TcpStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let timeout_ns = self.read_timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let until_ns = timeout_ns.map(|timeout_ns| clock::now_ns().saturating_add(timeout_ns));
        self.wait(until_ns, |stream| stream.read(buffer))
    }
}

impl Write for TcpStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(None, |stream| stream.write(bytes))
    }

    /// Does nothing: written data is sent when the program waits.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for TcpStream<'_> {
    fn drop(&mut self) {
        self.listener.with(|stack| {
            stack.leave(self.place);
            stack.hurry(self.place);
        });
    }
}

impl fmt::Debug for TcpStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStream").field("peer", &self.peer_addr()).finish_non_exhaustive()
    }
}

/// Runs a program to its end, and then until its written data was acknowledged.
fn run_to_the_end<P: Program>(program: &mut P, driver: impl Driver) -> io::Result<()> {
    let driver = RefCell::new(driver);
    let result = program.run(&TcpListener { driver: &driver });
    let mut driver = driver.into_inner();
    let end_ns = clock::now_ns() + ENDING_NS_MAX;
    while driver.backlog().stack.has_unsaid() && clock::now_ns() < end_ns {
        driver.turn(Some(end_ns))?;
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
/// # use pinion_sdk::net::{Program, Settings, TcpListener};
/// # struct Greeter;
/// # impl Program for Greeter {
/// #     fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> { Ok((Self, Settings::default())) }
/// #     fn run(&mut self, _listener: &TcpListener<'_>) -> std::io::Result<()> { Ok(()) }
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
