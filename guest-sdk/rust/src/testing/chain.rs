//! Chains of several stages on a fake node: [`Chain`].

mod branch;

use core::any::{Any, type_name};
use std::collections::VecDeque;

use pinion_abi::{OUTPUTS_MAX, RX_REPLY};

use self::branch::{Branch, is_message};
use super::slots::Described;
use super::{Harness, LoopHarness, Outcome, Verdict, direction_flag};
use crate::headers::Headers;
use crate::host::calls;
use crate::{Direction, Function, InitError, Looping};

/// Several functions as the stages of one chain, each in a [`Harness`], or in a [`LoopHarness`] if it is [`Looping`].
///
/// The first output of a stage leads to the next one, and that of the last stage out of the node: by the chain's
/// [egress](Chain::egress), or else by the port by which the frame came. A reply leaves by the port by which its frame came. Further
/// outputs lead where [`Chain::output`] says, and [`Chain::branch`] and [`Chain::entry`] choose by what is in a frame. With
/// [`Chain::reverse`] the chain has a way back, as with `reverse` in a manifest.
///
/// ```
/// use pinion_sdk::headers::Headers;
/// use pinion_sdk::testing::{Chain, Exit, Frame};
/// use pinion_sdk::{InitError, Packet, PacketFunction};
///
/// /// A hop: decrements the TTL.
/// struct Hop;
///
/// impl PacketFunction for Hop {
///     fn init(_config: &[u8]) -> Result<Self, InitError> {
///         Ok(Self)
///     }
///
///     fn handle(&mut self, mut packet: Packet<'_>) {
///         let ip = Headers::of(packet.data()).map(|headers| headers.ip());
///         if ip.is_ok_and(|ip| ip.decrement_hop_limit(packet.data_mut()).is_ok()) {
///             packet.send();
///         }
///     }
/// }
///
/// let mut chain = Chain::new().stage::<Hop>(b"").unwrap().stage::<Hop>(b"").unwrap().egress(1);
/// let ping = Frame::echo_request("10.0.0.1", "10.0.0.2");
/// let left = chain.deliver(&[&ping.clone().hop_limit(64).bytes(), &ping.clone().hop_limit(1).bytes()]);
///
/// assert_eq!((left[0].frame, left[0].exit), (Some(0), Exit::Port(1)));
/// assert_eq!(left[0].bytes, ping.hop_limit(62).bytes());
/// // The other one is dropped by the second stage.
/// assert_eq!((left[1].frame, left[1].exit, left[1].stage), (Some(1), Exit::Dropped, 1));
/// ```
#[derive(Default)]
pub struct Chain {
    stages: Vec<Stage>,
    entry: Option<Branch>,
    egress: Option<u16>,
    way_back: Option<WayBack>,
}

/// The end of a packet's way through a [`Chain`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The frame's index among those delivered together; `None` if a stage made the packet, or held it since an earlier delivery.
    pub frame: Option<usize>,
    /// The index of the stage that was the last to have it, counted from 0.
    pub stage: usize,
    /// Where it went.
    pub exit: Exit,
    /// The frame, as it left that stage.
    pub bytes: Vec<u8>,
}

/// Where a packet leaves a [`Chain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By the port with this index.
    Port(u16),
    /// A stage dropped it, or an edge that leads nowhere.
    Dropped,
    /// It came to a stage that had [finished](crate::finish) before.
    InstanceEnded,
}

/// Where an output of a stage leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// To the stage with this index, a later one.
    Stage(usize),
    /// Out of the node, as the last stage's first output does.
    Egress,
    /// Out of the node by the port with this index.
    Port(u16),
    /// Nowhere: frames are dropped.
    Drop,
}

struct Stage {
    harness: Box<dyn AnyHarness>,
    /// Where its outputs lead, as far as that is said.
    outputs: Vec<(u16, Output)>,
}

enum Output {
    To(Edge),
    By(Branch),
}

struct WayBack {
    /// Ports by which frames come in that go backwards.
    from: Vec<u16>,
    /// The port by which they leave.
    egress: u16,
}

impl WayBack {
    /// Returns where a frame goes from a stage on the way back.
    fn before(&self, stage: usize) -> Route {
        match stage.checked_sub(1) {
            Some(before) => Route::Stage(before, Direction::Backward),
            None => Route::Exit(Exit::Port(self.egress)),
        }
    }
}

/// A packet on its way to a stage.
struct Moving {
    stage: usize,
    port: u16,
    direction: Direction,
    frame: Option<usize>,
    bytes: Vec<u8>,
}

/// The next hop of a packet, with its direction from there.
enum Route {
    Stage(usize, Direction),
    Exit(Exit),
}

impl Chain {
    /// Makes a chain without stages.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a stage at the end, prepared and started as a node does.
    ///
    /// # Errors
    ///
    /// The function refuses its configuration.
    pub fn stage<F: Function + 'static>(mut self, config: &[u8]) -> Result<Self, InitError> {
        let harness = Box::new(Harness::<F>::new(config)?);
        self.stages.push(Stage { harness, outputs: Vec::new() });
        Ok(self)
    }

    /// Adds a stage with a loop of its own at the end, prepared and started as a node does, and run to its first wait.
    ///
    /// ```
    /// use pinion_sdk::testing::{Chain, Exit};
    /// use pinion_sdk::{InitError, Io, Looping, Packet};
    ///
    /// /// Sends every second packet on.
    /// struct Half;
    ///
    /// impl Looping for Half {
    ///     fn init(_config: &[u8]) -> Result<Self, InitError> {
    ///         Ok(Self)
    ///     }
    ///
    ///     fn run(&mut self, io: &mut Io<'_>) {
    ///         let mut number = 0;
    ///         loop {
    ///             for packet in io.wait() {
    ///                 number += 1;
    ///                 if number % 2 == 0 { packet.send() }
    ///             }
    ///         }
    ///     }
    /// }
    ///
    /// let mut chain = Chain::new().looping_stage::<Half>(b"").unwrap().looping_stage::<Half>(b"").unwrap();
    /// let exits: Vec<Exit> = chain.deliver(&[&[0; 60][..]; 4]).iter().map(|left| left.exit).collect();
    /// assert_eq!(exits, [Exit::Dropped, Exit::Dropped, Exit::Dropped, Exit::Port(0)]);
    /// ```
    ///
    /// # Errors
    ///
    /// The function refuses its configuration.
    ///
    /// # Panics
    ///
    /// As [`LoopHarness::new`].
    pub fn looping_stage<F: Looping>(mut self, config: &[u8]) -> Result<Self, InitError> {
        let harness = Box::new(LoopHarness::<F>::new(config)?);
        self.stages.push(Stage { harness, outputs: Vec::new() });
        Ok(self)
    }

    /// Sets the port by which frames leave after the last stage. Without it they leave by the port by which they came.
    #[must_use]
    pub fn egress(mut self, port: u16) -> Self {
        self.egress = Some(port);
        self
    }

    /// Gives the chain a way back: frames that come in by one of the ports `from` pass the stages from the last one to the first, and
    /// leave by the port `egress`.
    ///
    /// A reply goes towards the port by which its frame came in, through the stages on that side. So a stage gets the reply of one behind it
    /// as a packet that goes in the opposite direction, and [`Packet::is_reply`](crate::Packet::is_reply) says so.
    ///
    /// ```
    /// use pinion_sdk::testing::{Chain, Exit};
    /// use pinion_sdk::{Direction, InitError, Packet, PacketFunction};
    ///
    /// /// Writes into each packet which way it goes.
    /// struct Signpost;
    ///
    /// impl PacketFunction for Signpost {
    ///     fn init(_config: &[u8]) -> Result<Self, InitError> {
    ///         Ok(Self)
    ///     }
    ///
    ///     fn handle(&mut self, mut packet: Packet<'_>) {
    ///         packet.data_mut()[0] = if packet.direction() == Some(Direction::Backward) { b'<' } else { b'>' };
    ///         packet.send();
    ///     }
    /// }
    ///
    /// let mut chain = Chain::new().stage::<Signpost>(b"").unwrap().egress(1).reverse(&[1], 0);
    /// let forwards = chain.deliver_from(0, &[&[0; 60]]).remove(0);
    /// assert_eq!((forwards.exit, forwards.bytes[0]), (Exit::Port(1), b'>'));
    /// let backwards = chain.deliver_from(1, &[&[0; 60]]).remove(0);
    /// assert_eq!((backwards.exit, backwards.bytes[0]), (Exit::Port(0), b'<'));
    /// ```
    #[must_use]
    pub fn reverse(mut self, from: &[u16], egress: u16) -> Self {
        self.assert_is_line("gets a way back", self.branches());
        self.way_back = Some(WayBack { from: from.to_vec(), egress });
        self
    }

    /// Says where an output of a stage leads. The first output, 0, leads to the next stage as long as nothing else is said.
    ///
    /// On the way back of a chain that has one, the first output and each that leads to a stage lead to the stage before. Other outputs lead
    /// where they do forwards.
    ///
    /// # Panics
    ///
    /// If there is no such stage yet, if no stage has so many outputs, or if the output leads to the same stage or an earlier one.
    #[must_use]
    pub fn output(mut self, stage: usize, output: u16, to: Edge) -> Self {
        if let Edge::Stage(to) = to {
            assert!(to > stage, "stage {stage} cannot lead to stage {to}: a chain has no loops");
        }
        self.set_output(stage, output, Output::To(to));
        self
    }

    /// Says that an output of a stage branches, as one with `branch` in a manifest does: the node, and not the function, chooses where each
    /// frame goes. `matched` stands for the manifest's matches: it returns where a frame goes by its bytes, and `None` for the default. It gets
    /// no [messages](crate::Message) and nothing about [flows](crate::outbound), as these take the default.
    ///
    /// ```
    /// use pinion_sdk::headers::Headers;
    /// use pinion_sdk::testing::{Chain, Edge, Exit, Frame};
    /// use pinion_sdk::{InitError, Packet, PacketFunction};
    ///
    /// struct Pass;
    ///
    /// impl PacketFunction for Pass {
    ///     fn init(_config: &[u8]) -> Result<Self, InitError> {
    ///         Ok(Self)
    ///     }
    ///
    ///     fn handle(&mut self, packet: Packet<'_>) {
    ///         packet.send();
    ///     }
    /// }
    ///
    /// let is_dns = |frame: &[u8]| Headers::of(frame).is_ok_and(|it| it.ports.is_some_and(|ports| ports.destination == 53));
    /// let mut chain = Chain::new().stage::<Pass>(b"").unwrap();
    /// chain = chain.branch(0, 0, Edge::Drop, move |frame| is_dns(frame).then_some(Edge::Port(1)));
    /// let [dns, other] = ["10.0.0.2:53", "10.0.0.2:54"].map(|to| Frame::udp("10.0.0.1:5000", to).bytes());
    /// let exits: Vec<Exit> = chain.deliver(&[&dns, &other]).iter().map(|left| left.exit).collect();
    /// assert_eq!(exits, [Exit::Port(1), Exit::Dropped]);
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no such stage yet, if no stage has so many outputs, or if the chain has a way back. Later, if it leads a frame to the same
    /// stage or an earlier one.
    #[must_use]
    pub fn branch(
        mut self,
        stage: usize,
        output: u16,
        default: Edge,
        matched: impl Fn(&[u8]) -> Option<Edge> + 'static,
    ) -> Self {
        self.assert_is_line("branches", self.way_back.is_some());
        self.set_output(stage, output, Output::By(Branch::new(default, matched)));
        self
    }

    /// Says by which stage each frame enters, or that it is dropped, as `entry` in a manifest does. `matched` is as for [`Chain::branch`], and
    /// what it leaves to the default, as messages, enters there. A frame that is dropped here departs from stage 0.
    ///
    /// # Panics
    ///
    /// If the chain has a way back. Later, if it leads a frame to a stage that is not there, or out of the chain.
    #[must_use]
    pub fn entry(mut self, default: Edge, matched: impl Fn(&[u8]) -> Option<Edge> + 'static) -> Self {
        self.assert_is_line("branches", self.way_back.is_some());
        self.entry = Some(Branch::new(default, matched));
        self
    }

    fn branches(&self) -> bool {
        let outputs = || self.stages.iter().flat_map(|stage| &stage.outputs);
        self.entry.is_some() || outputs().any(|(_, leads)| matches!(leads, Output::By(_)))
    }

    fn assert_is_line(&self, what: &str, is_other: bool) {
        assert!(
            !is_other,
            "the chain {what}: here a chain has branches or a way back, and not both, as only a node knows the way back"
        );
    }

    fn set_output(&mut self, stage: usize, output: u16, leads: Output) {
        let count = self.stages.len();
        assert!(
            output < OUTPUTS_MAX,
            "a stage has at most {OUTPUTS_MAX} outputs, from 0 on, and {output} is none of them"
        );
        let Some(from) = self.stages.get_mut(stage) else {
            panic!("there are {count} stages, and none has the index {stage}")
        };
        from.outputs.retain(|(known, _)| *known != output);
        from.outputs.push((output, leads));
    }

    /// Delivers frames from port 0, and moves them and what the stages make through the chain, until none moves any more. Returns how they
    /// left it, in that order.
    ///
    /// # Panics
    ///
    /// If a stage sends to an output that leads nowhere, or as [`Harness::deliver`].
    pub fn deliver(&mut self, frames: &[&[u8]]) -> Vec<Departure> {
        self.deliver_from(0, frames)
    }

    /// Delivers frames from the port with this index. [Messages](crate::Message) go forwards, whatever the port.
    ///
    /// # Panics
    ///
    /// As [`Chain::deliver`], or if the chain has no stage.
    pub fn deliver_from(&mut self, port: u16, frames: &[&[u8]]) -> Vec<Departure> {
        let last = self.stages.len().checked_sub(1).expect("a chain has at least one stage");
        let (mut moving, mut departures) = (VecDeque::new(), Vec::new());
        for (number, frame) in frames.iter().enumerate() {
            let is_backward = !is_message(frame) && self.comes_from_behind(port);
            let route = match &self.entry {
                _ if is_backward => Route::Stage(last, Direction::Backward),
                Some(entry) => self.enter(entry.edge_of(frame)),
                None => Route::Stage(0, Direction::Forward),
            };
            let (frame, bytes) = (Some(number), frame.to_vec());
            match route {
                Route::Stage(stage, direction) => moving.push_back(Moving { stage, port, direction, frame, bytes }),
                Route::Exit(exit) => departures.push(Departure { frame, stage: 0, exit, bytes }),
            }
        }
        departures.extend(self.settle(moving));
        departures
    }

    /// Lets time pass, and calls each stage, or ends its wait, at its deadlines within it. Returns how packets left the chain.
    ///
    /// # Panics
    ///
    /// As [`Chain::deliver`].
    pub fn let_pass_ns(&mut self, duration_ns: u64) -> Vec<Departure> {
        let until_ns = calls::exact_clock_ns() + duration_ns;
        let mut departures = Vec::new();
        loop {
            let due = self.stages.iter().enumerate().filter_map(|(at, stage)| Some((stage.harness.due_ns()?, at)));
            let Some((due_ns, at)) = due.min().filter(|(due_ns, _)| *due_ns <= until_ns) else { break };
            let verdicts = self.stages[at].harness.let_pass_ns(due_ns.saturating_sub(calls::exact_clock_ns()));
            let mut moving = VecDeque::new();
            for verdict in verdicts {
                self.forward(at, verdict, &[], &mut moving, &mut departures);
            }
            departures.extend(self.settle(moving));
        }
        calls::advance_clock_ns(until_ns - calls::exact_clock_ns());
        departures
    }

    /// Returns a stage's harness, for its function and metrics.
    ///
    /// # Panics
    ///
    /// If the stage with this index has another function.
    pub fn harness<F: Function + 'static>(&mut self, stage: usize) -> &mut Harness<F> {
        self.harness_as(stage)
    }

    /// Returns the harness of a [stage with a loop](Chain::looping_stage), for its metrics.
    ///
    /// # Panics
    ///
    /// If the stage with this index has another function, or was not added as one with a loop.
    pub fn loop_harness<F: Looping>(&mut self, stage: usize) -> &mut LoopHarness<F> {
        self.harness_as(stage)
    }

    fn harness_as<H: Any>(&mut self, stage: usize) -> &mut H {
        let harness: &mut dyn Any = self.stages[stage].harness.as_mut();
        harness.downcast_mut().unwrap_or_else(|| panic!("stage {stage} has no {}", type_name::<H>()))
    }

    /// Moves packets until all have left. What comes to a stage at once and in the same way is one delivery, as on a node.
    fn settle(&mut self, mut moving: VecDeque<Moving>) -> Vec<Departure> {
        let mut departures = Vec::new();
        while let Some(first) = moving.pop_front() {
            let (stage, described) = (first.stage, self.described(&first));
            let mut batch = vec![first];
            while let Some(next) = moving.pop_front_if(|next| {
                next.stage == stage
                    && (next.port, next.direction) == (batch[0].port, batch[0].direction)
                    && is_message(&next.bytes) == is_message(&batch[0].bytes)
            }) {
                batch.push(next);
            }
            let frames: Vec<&[u8]> = batch.iter().map(|moving| moving.bytes.as_slice()).collect();
            let verdicts = self.stages[stage].harness.deliver_described(&described, &frames);
            let numbers: Vec<_> = batch.iter().map(|moving| moving.frame).collect();
            for verdict in verdicts {
                self.forward(stage, verdict, &numbers, &mut moving, &mut departures);
            }
        }
        departures
    }

    /// Moves one packet on from a stage. `frames` are the indices of what was delivered to the stage.
    fn forward(
        &self,
        stage: usize,
        verdict: Verdict,
        frames: &[Option<usize>],
        moving: &mut VecDeque<Moving>,
        departures: &mut Vec<Departure>,
    ) {
        let frame = verdict.frame.and_then(|at| frames.get(at).copied().flatten());
        let (port, direction) = (verdict.ingress_port, verdict.direction.unwrap_or(Direction::Forward));
        let mut bytes = verdict.bytes;
        if verdict.completes_checksums
            && let Ok(headers) = Headers::of_part(&bytes)
        {
            headers.recompute_checksums(&mut bytes).expect("the headers are this frame's");
        }
        match self.route(stage, verdict.outcome, port, direction, &bytes) {
            Route::Stage(stage, direction) => moving.push_back(Moving { stage, port, direction, frame, bytes }),
            Route::Exit(exit) => departures.push(Departure { frame, stage, exit, bytes }),
        }
    }

    fn route(&self, stage: usize, outcome: Outcome, port: u16, direction: Direction, frame: &[u8]) -> Route {
        match outcome {
            Outcome::Sent => self.along(stage, 0, port, direction, frame),
            Outcome::SentTo(output) => self.along(stage, output, port, direction, frame),
            Outcome::Replied if self.way_back.is_some() && !is_message(frame) => {
                let towards = if self.comes_from_behind(port) { Direction::Forward } else { Direction::Backward };
                match self.along(stage, 0, port, towards, frame) {
                    through @ Route::Stage(..) => through,
                    Route::Exit(_) => Route::Exit(Exit::Port(port)),
                }
            }
            Outcome::Replied => Route::Exit(Exit::Port(port)),
            Outcome::Dropped => Route::Exit(Exit::Dropped),
            Outcome::InstanceEnded => Route::Exit(Exit::InstanceEnded),
        }
    }

    /// Returns where an edge of the entrance leads a frame.
    fn enter(&self, edge: Edge) -> Route {
        match edge {
            Edge::Stage(stage) if stage >= self.stages.len() => {
                panic!("the entry leads to stage {stage}, which is not there")
            }
            Edge::Stage(stage) => Route::Stage(stage, Direction::Forward),
            Edge::Drop => Route::Exit(Exit::Dropped),
            Edge::Egress | Edge::Port(_) => {
                panic!(
                    "the entry leads out of the chain: packets pass at least one stage, so name a stage or Edge::Drop"
                )
            }
        }
    }

    /// Returns where an output leads in a direction.
    fn along(&self, stage: usize, output: u16, port: u16, direction: Direction, frame: &[u8]) -> Route {
        let said = self.stages[stage].outputs.iter().find(|(known, _)| *known == output);
        let edge = match said.map(|(_, leads)| leads) {
            Some(Output::To(edge)) => *edge,
            Some(Output::By(branch)) => branch.edge_of(frame),
            None if output == 0 && stage + 1 < self.stages.len() => Edge::Stage(stage + 1),
            None if output == 0 => Edge::Egress,
            None => {
                panic!("stage {stage} sent to output {output}, which leads nowhere: say where by Chain::output")
            }
        };
        match (edge, &self.way_back) {
            (_, Some(way_back)) if output == 0 && direction == Direction::Backward => way_back.before(stage),
            (Edge::Stage(_), Some(way_back)) if direction == Direction::Backward => way_back.before(stage),
            (edge, _) => self.onwards(stage, output, edge, port, direction),
        }
    }

    /// Returns where an edge leads a frame from an output that leads the same way in both directions.
    fn onwards(&self, stage: usize, output: u16, edge: Edge, port: u16, direction: Direction) -> Route {
        match edge {
            Edge::Stage(next) if next >= self.stages.len() => {
                panic!("output {output} of stage {stage} leads to stage {next}, which is not there")
            }
            Edge::Stage(next) if next <= stage => {
                panic!("stage {stage} cannot lead to stage {next}: a chain has no loops")
            }
            edge => self.follow(edge, port, direction),
        }
    }

    /// Returns where an edge leads a frame of this port.
    fn follow(&self, edge: Edge, port: u16, direction: Direction) -> Route {
        match edge {
            Edge::Stage(stage) => Route::Stage(stage, direction),
            Edge::Egress => Route::Exit(Exit::Port(self.egress.unwrap_or(port))),
            Edge::Port(port) => Route::Exit(Exit::Port(port)),
            Edge::Drop => Route::Exit(Exit::Dropped),
        }
    }

    /// Returns whether frames from a port go backwards.
    fn comes_from_behind(&self, port: u16) -> bool {
        self.way_back.as_ref().is_some_and(|way_back| way_back.from.contains(&port))
    }

    /// Returns what a stage is told about a packet.
    fn described(&self, moving: &Moving) -> Described {
        let Moving { port, direction, .. } = *moving;
        let flags = if self.way_back.is_none() || is_message(&moving.bytes) {
            0
        } else {
            let ingress = if self.comes_from_behind(port) { Direction::Backward } else { Direction::Forward };
            direction_flag(direction) | if direction == ingress { 0 } else { RX_REPLY }
        };
        Described { ingress_port: port, flags, ..Described::default() }
    }
}

/// A harness of any function.
trait AnyHarness: Any {
    fn deliver_described(&mut self, described: &Described, frames: &[&[u8]]) -> Vec<Verdict>;
    fn let_pass_ns(&mut self, duration_ns: u64) -> Vec<Verdict>;
    fn due_ns(&self) -> Option<u64>;
}

impl<F: Function + 'static> AnyHarness for Harness<F> {
    fn deliver_described(&mut self, described: &Described, frames: &[&[u8]]) -> Vec<Verdict> {
        self.deliver_described(described, frames)
    }

    fn let_pass_ns(&mut self, duration_ns: u64) -> Vec<Verdict> {
        self.let_pass_ns(duration_ns)
    }

    fn due_ns(&self) -> Option<u64> {
        self.due_ns()
    }
}

impl<F: Looping> AnyHarness for LoopHarness<F> {
    fn deliver_described(&mut self, described: &Described, frames: &[&[u8]]) -> Vec<Verdict> {
        self.deliver_described(described, frames)
    }

    fn let_pass_ns(&mut self, duration_ns: u64) -> Vec<Verdict> {
        self.let_pass_ns(duration_ns)
    }

    fn due_ns(&self) -> Option<u64> {
        self.due_ns()
    }
}
