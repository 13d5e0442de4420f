//! A guest that writes anything into its pool header, its rings and its slots. A simple second record tracks the owner of each slot.
//!
//! ```text
//!   program -> steps -> attacker (place 0) --first output--> witness (place 1), honest
//!                      |        |    ^                           counts and reads what arrives
//!           second output     reply  frames
//!                      v        v    |
//!                            gateway
//! ```
//!
//! After each step, all of the attacker's memory must be as the record says: the host has written its own indices, receive descriptors and
//! slots that it owned, and not one byte more. Each frame that leaves must have the contents of a slot that the guest owned when it sent
//! the slot. In the end every slot and buffer is back. The attacker's memory lies between guard pages, so that a read outside of it is a
//! crash.

use std::collections::VecDeque;

use pinion_abi::{
    Descriptor, PORT_DROP, PORT_NEXT, PORT_REPLY, PoolHeader, RX_HEADROOM, RingHeader, TX_CHECKSUM, WAYS_MAX,
};
use pinion_mma::accounts::counters::FwpCounters;
use pinion_mma::guest::mailbox::Violation;
use pinion_mma::id::PortIndex;
use pinion_mma::mover::MmaCommand;
use pinion_mma::wiring::{Backpressure, Edge, Wiring};

use crate::support::{Guest, House, Index, Left, Plan, Shape, frame, id, judged};

const STEPS_MAX: usize = 64;
const BUFFERS: usize = 64;
const BUFFER_BYTES: usize = 2048;
/// Frames on their way to the attacker, and frames anywhere in it: so few that a buffer is always free.
const ARRIVING_MAX: usize = 16;
const INSIDE_MAX: usize = 32;
/// The attacker's second output, and where it leads.
const SECOND: u16 = 1;
const OUTPUTS: u16 = 2;
const EGRESS: u16 = 300;
const OUTLETS: [u16; 4] = [PORT_NEXT, PORT_REPLY, PORT_DROP, SECOND];
/// So few slots that the attacker can fill the pool.
const WITNESS: Shape = Shape { slot_count: 4, slot_size: 1600, ring_entries: 4 };
/// Memory of an attacker whose pool header comes from the program.
const WILD_MEMORY_BYTES: usize = 1 << 15;
const HEADER_BYTES: usize = size_of::<RingHeader>();
const DESCRIPTOR_BYTES: usize = size_of::<Descriptor>();
/// Ports that frames come from.
const PORTS: u16 = WAYS_MAX / 2;
/// What the guest is shown of the time at which a frame came.
const ARRIVED: u32 = 0x1234_5678;

/// What happened to the attacker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The reason for which it was stopped.
    pub violation: Option<Violation>,
    /// Frames that went from it to another place.
    pub moved: usize,
}

/// Runs a program; returns none if it does not begin with a pool that a node would accept.
///
/// # Panics
/// If the host did something forbidden, or did not do something required.
pub fn check(program: &[u8]) -> Option<Outcome> {
    let mut program = Program(program);
    let mut siege = Siege::new(attacker(&mut program)?);
    for _ in 0..STEPS_MAX {
        let Some(step) = Step::read(&mut program) else { break };
        siege.follow(step);
        if siege.outcome.violation.is_some() {
            break;
        }
    }
    Some(siege.end())
}

/// The bytes of a program that are still to be read.
struct Program<'a>(&'a [u8]);

impl Program<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }
}

fn attacker(program: &mut Program<'_>) -> Option<Guest> {
    let kind = program.byte()?;
    if kind == u8::MAX {
        let header = PoolHeader {
            magic: program.u32()?,
            slot_count: program.u32()?,
            slot_size: program.u32()?,
            slots: program.u32()?,
            ring_entries: program.u32()?,
            rx_ring: program.u32()?,
            tx_ring: program.u32()?,
            own_slots: program.u32()?,
        };
        return Guest::with_header(header, WILD_MEMORY_BYTES).ok();
    }
    let slot_count = u32::from(kind % 8) + 1;
    let slot_size = [1600, 1664, 1728, 2048][usize::from(kind / 8 % 4)];
    let ring_entries = slot_count.next_power_of_two() << (kind / 32 % 2);
    Some(Guest::new(Shape { slot_count, slot_size, ring_entries }))
}

/// One step, of the guest or of its environment.
#[derive(Clone, Copy, Debug)]
enum Step {
    Inject {
        len: u16,
        port: u8,
    },
    Poll,
    Publish,
    Collect,
    /// Sends one of the slots that the guest owns, by the rules.
    Pass {
        held: u8,
        len: u16,
        outlet: u8,
    },
    Send(Descriptor),
    /// Moves the transmit index.
    MoveTail(i8),
    SetTail(u32),
    Scribble {
        place: Target,
        offset: u16,
        bytes: [u8; 8],
    },
}

/// Where a guest writes arbitrary bytes.
#[derive(Clone, Copy, Debug)]
enum Target {
    ReceiveRing,
    TransmitRing,
    Slots,
    Anywhere,
}

impl Step {
    fn read(program: &mut Program<'_>) -> Option<Self> {
        Some(match program.byte()? % 9 {
            0 => Self::Inject { len: program.u16()?, port: program.byte()? },
            1 => Self::Poll,
            2 => Self::Publish,
            3 => Self::Collect,
            4 => Self::Pass { held: program.byte()?, len: program.u16()?, outlet: program.byte()? },
            5 => {
                let (slot, offset, len) = (program.u16()?, program.u16()?, program.u16()?);
                let (port, flags, way) = (program.u16()?, program.u16()?, program.u16()?);
                Self::Send(Descriptor { slot, offset, len, port, flags, way, arrived: u32::from(!flags) })
            }
            6 => Self::MoveTail(program.byte()? as i8),
            7 => Self::SetTail(program.u32()?),
            _ => {
                let places = [Target::ReceiveRing, Target::TransmitRing, Target::Slots, Target::Anywhere];
                let place = places[usize::from(program.byte()?) % places.len()];
                Self::Scribble { place, offset: program.u16()?, bytes: program.bytes()? }
            }
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The host: the slot is free, or holds a frame that is not yet published to the guest.
    Host,
    Guest,
    /// The host, with a frame that the guest has sent.
    Sent,
    /// The guest, as soon as something is published: the slot is one of its own.
    Withheld,
    /// The guest, as soon as the slot's return is published: it is one of its own, and was emptied.
    Returning,
}

#[derive(Debug)]
struct Packet {
    port: u16,
    /// None if a slot of the guest's own comes back.
    bytes: Vec<u8>,
}

/// The attacker, its environment, and the record.
struct Siege {
    house: House,
    pool: PoolHeader,
    owners: Vec<Owner>,
    /// By slot: the ingress port of the frame that the guest holds.
    came_by: Vec<u16>,
    /// The ways by which the guest has received frames, the latest one last.
    ways: Vec<u16>,
    arriving: VecDeque<Packet>,
    delivered: VecDeque<Packet>,
    sent: VecDeque<Descriptor>,
    rx_tail: u32,
    tx_head: u32,
    injected: u32,
    /// Frames that the attacker's own pool, or the gateway, did not accept.
    refused: u64,
    /// Frames that the witness's pool did not accept.
    refused_by_witness: u64,
    dropped: u64,
    /// The guest has written into slots, so their contents are not what was received.
    scribbled: bool,
    outcome: Outcome,
}

impl Siege {
    fn new(attacker: Guest) -> Self {
        let pool = *attacker.header();
        let plan = Plan { fwps_max: 2, buffers: BUFFERS, buffer_bytes: BUFFER_BYTES };
        let mut house = House::new(&plan);
        let outputs = vec![Edge::Fwp(id(1)), Edge::Egress(PortIndex(EGRESS))];
        let mut owners = vec![Owner::Host; pool.slot_count as usize];
        owners[(pool.slot_count - pool.own_slots) as usize..].fill(Owner::Withheld);
        let (_, endpoint) = house.make_of(id(0), attacker, Wiring::new(outputs, Backpressure::Drop));
        house.command(MmaCommand::Attach(endpoint));
        house.attach(id(1), WITNESS, Edge::EgressWhereItCame);
        house.mma.poll();
        Self {
            house,
            pool,
            owners,
            came_by: vec![0; pool.slot_count as usize],
            ways: Vec::new(),
            arriving: VecDeque::new(),
            delivered: VecDeque::new(),
            sent: VecDeque::new(),
            rx_tail: 0,
            tx_head: 0,
            injected: 0,
            refused: 0,
            refused_by_witness: 0,
            dropped: 0,
            scribbled: false,
            outcome: Outcome::default(),
        }
    }

    fn guest(&self) -> &Guest {
        &self.house.fwps[0].guest
    }

    fn follow(&mut self, step: Step) {
        match step {
            Step::Inject { len, port } => self.inject(usize::from(len) % BUFFER_BYTES + 1, u16::from(port) % PORTS),
            Step::Poll => self.poll(),
            Step::Publish => self.publish(),
            Step::Collect => self.collect(),
            Step::Pass { held, len, outlet } => self.pass(held, len, outlet),
            Step::Send(descriptor) => self.send(descriptor),
            Step::MoveTail(by) => self.set_tail(self.tail().wrapping_add_signed(by.into())),
            Step::SetTail(tail) => self.set_tail(tail),
            Step::Scribble { place, offset, bytes } => {
                let start = match place {
                    Target::ReceiveRing => self.pool.rx_ring,
                    Target::TransmitRing => self.pool.tx_ring,
                    Target::Slots => self.pool.slots,
                    Target::Anywhere => 0,
                };
                self.guest().scribble(start as usize + usize::from(offset), &bytes);
                self.scribbled = true;
            }
        }
    }

    fn inject(&mut self, len: usize, port: u16) {
        let held = self.owners.iter().filter(|&&owner| owner != Owner::Host).count();
        let inside = self.arriving.len() + self.delivered.len() + held;
        if self.arriving.len() < ARRIVING_MAX && inside < INSIDE_MAX {
            self.injected += 1;
            let bytes = frame(self.injected, len);
            self.house.gateway.inject(&bytes, port, id(0));
            self.arriving.push_back(Packet { port, bytes });
        }
    }

    fn pass(&mut self, held: u8, len: u16, outlet: u8) {
        let owned = (0..).zip(&self.owners).filter(|(_, owner)| **owner == Owner::Guest).map(|(slot, _)| slot);
        let owned: Vec<u16> = owned.collect();
        if owned.is_empty() {
            return;
        }
        let (slot, port) = (owned[usize::from(held) % owned.len()], OUTLETS[usize::from(outlet) % OUTLETS.len()]);
        let offset = RX_HEADROOM as u16;
        let len = 1 + len % (self.pool.slot_size as u16 - offset);
        let way = self.ways.last().copied().unwrap_or(0);
        self.send(Descriptor { slot, offset, len, port, way, ..Descriptor::default() });
    }

    fn tail(&self) -> u32 {
        self.guest().tx(Index::Tail)
    }

    fn set_tail(&self, tail: u32) {
        self.guest().set_tx(Index::Tail, tail);
    }

    fn send(&self, descriptor: Descriptor) {
        let tail = self.tail();
        self.guest().write_entry(tail, descriptor);
        self.set_tail(tail.wrapping_add(1));
    }

    /// Returns the offset of the entry for an index of a ring.
    fn entry(&self, ring: u32, index: u32) -> usize {
        ring as usize + HEADER_BYTES + (index % self.pool.ring_entries) as usize * DESCRIPTOR_BYTES
    }

    fn slot(&self, slot: u16) -> usize {
        self.pool.slots as usize + usize::from(slot) * self.pool.slot_size as usize
    }

    fn free(&self) -> usize {
        let taken = self.delivered.iter().filter(|packet| !packet.bytes.is_empty()).count();
        self.owners.iter().filter(|&&owner| owner == Owner::Host).count() - taken
    }

    fn is_own(&self, slot: u16) -> bool {
        u32::from(slot) >= self.pool.slot_count - self.pool.own_slots
    }

    fn publish(&mut self) {
        let mut expected = self.guest().snapshot();
        let published = self.house.fwps[0].mailbox.publish(|_| ARRIVED);
        let memory = self.guest().snapshot();
        assert_eq!(published as usize, self.delivered.len(), "published is what was delivered");
        while let Some(packet) = self.delivered.pop_front() {
            let place = self.entry(self.pool.rx_ring, self.rx_tail);
            let descriptor = read_descriptor(&memory, place);
            let Descriptor { slot, offset, len, port, flags, way, arrived } = descriptor;
            assert_eq!((offset, flags, arrived), (RX_HEADROOM as u16, 0, if len > 0 { ARRIVED } else { 0 }));
            assert_eq!((usize::from(len), port, way), (packet.bytes.len(), packet.port, packet.port << 1));
            if len > 0 {
                self.ways.retain(|known| *known != way);
                self.ways.push(way);
            }
            let owner = if packet.bytes.is_empty() { Owner::Returning } else { Owner::Host };
            assert_eq!(self.owners.get(usize::from(slot)), Some(&owner), "slot {slot} is not the host's to give");
            let start = self.slot(slot) + usize::from(offset);
            assert!(self.scribbled || memory[start..start + packet.bytes.len()] == packet.bytes, "another frame");
            self.owners[usize::from(slot)] = Owner::Guest;
            self.came_by[usize::from(slot)] = port;
            self.rx_tail = self.rx_tail.wrapping_add(1);
            expected[place..place + DESCRIPTOR_BYTES].copy_from_slice(&memory[place..place + DESCRIPTOR_BYTES]);
        }
        if published > 0 {
            for owner in self.owners.iter_mut().filter(|owner| **owner == Owner::Withheld) {
                *owner = Owner::Guest;
            }
            write_u32(&mut expected, self.pool.rx_ring as usize + 4, self.rx_tail);
        }
        assert!(memory == expected, "publishing has written what it must not");
    }

    fn collect(&mut self) {
        let (mut expected, known) = (self.guest().snapshot(), self.sent.len());
        let judgement = self.judge(&expected);
        let collected = self.house.fwps[0].collect();
        assert_eq!(collected, judgement);
        // Frames of which the checksums are computed may change, and nothing around them.
        let memory = self.guest().snapshot();
        for sent in self.sent.range(known..).filter(|sent| sent.flags & TX_CHECKSUM != 0 && sent.port != PORT_DROP) {
            let start = self.slot(sent.slot) + usize::from(sent.offset);
            let bytes = start..start + usize::from(sent.len);
            expected[bytes.clone()].copy_from_slice(&memory[bytes]);
        }
        if !matches!(judgement, Ok(0) | Err(Violation::IndexJump { .. })) {
            write_u32(&mut expected, self.pool.tx_ring as usize, self.tx_head);
        }
        assert!(memory == expected, "collecting has written what it must not");
        self.outcome.violation = judgement.err();
    }

    /// Returns the violation for which the host must stop this transmit ring, or else takes its valid entries.
    fn judge(&mut self, memory: &[u8]) -> Result<u32, Violation> {
        let (head, entries) = (self.tx_head, self.pool.ring_entries);
        let tail = read_u32(memory, self.pool.tx_ring as usize + 4);
        let count = tail.wrapping_sub(head);
        if count > entries {
            return Err(Violation::IndexJump { head, tail, entries });
        }
        for _ in 0..count {
            let sent = read_descriptor(memory, self.entry(self.pool.tx_ring, self.tx_head));
            let owns = |slot| self.owners.get(usize::from(slot)) == Some(&Owner::Guest);
            let may_name = |slot, way| !self.is_own(slot) || self.ways.contains(&way);
            judged(self.pool.slot_size, OUTPUTS, owns, may_name, sent)?;
            self.owners[usize::from(sent.slot)] = Owner::Sent;
            self.sent.push_back(sent);
            self.tx_head = self.tx_head.wrapping_add(1);
        }
        Ok(count)
    }

    fn poll(&mut self) {
        let before = self.guest().snapshot();
        self.house.gateway.top_up(self.arriving.len() + INSIDE_MAX);
        while self.house.mma.has_work() {
            self.house.mma.poll();
        }
        self.assert_only_free_slots_written(&before);
        while let Some(packet) = self.arriving.pop_front() {
            let fits = packet.bytes.len() <= (self.pool.slot_size - RX_HEADROOM) as usize;
            if fits && self.free() > 0 {
                self.delivered.push_back(packet);
            } else {
                self.refused += 1;
            }
        }
        let (mut leaving, mut witnessed) = (Vec::new(), Vec::new());
        while let Some(sent) = self.sent.pop_front() {
            let is_own = self.is_own(sent.slot);
            self.owners[usize::from(sent.slot)] = if is_own { Owner::Returning } else { Owner::Host };
            if is_own {
                self.delivered.push_back(Packet { port: 0, bytes: Vec::new() });
            }
            let start = self.slot(sent.slot) + usize::from(sent.offset);
            let port = if is_own { sent.way >> 1 } else { self.came_by[usize::from(sent.slot)] };
            let len = usize::from(sent.len);
            if sent.port == PORT_DROP {
                // A discarded entry's range is not checked.
                self.dropped += 1;
                continue;
            }
            let frame = |port| Left { port, bytes: before[start..start + len].to_vec() };
            match sent.port {
                PORT_NEXT if witnessed.len() < WITNESS.slot_count as usize && len <= WITNESS.frame_bytes_max() => {
                    witnessed.push(frame(port));
                }
                PORT_NEXT => self.refused_by_witness += 1,
                _ if len > BUFFER_BYTES => self.refused += 1,
                SECOND => leaving.push(frame(EGRESS)),
                _ => leaving.push(frame(port)),
            }
        }
        self.outcome.moved += leaving.len() + witnessed.len();
        assert_eq!(self.house.gateway.collect(), leaving);
        self.assert_witnessed(&witnessed);
    }

    /// Checks that only slots that were the host's have changed, and nothing else in the whole memory.
    fn assert_only_free_slots_written(&self, before: &[u8]) {
        let after = self.guest().snapshot();
        let slots = self.pool.slots as usize;
        let end = slots + self.owners.len() * self.pool.slot_size as usize;
        assert!(after[..slots] == before[..slots] && after[end..] == before[end..], "written outside of the slots");
        for (slot, owner) in (0..).zip(&self.owners) {
            let bytes = self.slot(slot)..self.slot(slot) + self.pool.slot_size as usize;
            let same = after[bytes.clone()] == before[bytes];
            assert!(same || *owner == Owner::Host, "slot {slot} was written to, which the host had not to give");
        }
    }

    /// Checks that the witness received exactly this; drops all of it.
    fn assert_witnessed(&mut self, expected: &[Left]) {
        let witness = &mut self.house.fwps[1];
        let received = witness.publish_all();
        let seen = received.iter().map(|it| Left { port: it.port, bytes: witness.guest.frame(it) });
        assert_eq!(seen.collect::<Vec<_>>(), expected);
        for &descriptor in &received {
            witness.guest.pass(descriptor, PORT_DROP);
        }
        assert_eq!(witness.collect(), Ok(expected.len() as u32));
        self.house.mma.poll();
    }

    /// Lets all frames reach their ends, and checks that none is missing.
    fn end(mut self) -> Outcome {
        self.poll();
        let counters = self.house.fwps[0].mailbox.counters();
        assert_eq!(counters.guest.dropped.value(), self.dropped);
        assert_eq!(refused_by(counters), self.refused);
        assert_eq!(refused_by(self.house.fwps[1].mailbox.counters()), self.refused_by_witness);
        assert_eq!(counters.moved.sent.value(), self.outcome.moved as u64);
        if self.outcome.violation.is_none() {
            self.assert_no_slot_is_lost();
        }
        self.house.command(MmaCommand::Detach(id(0)));
        self.house.mma.poll();
        assert_eq!(self.house.detached().map(|endpoint| endpoint.id()), Some(id(0)));
        self.house.gateway.collect();
        assert!(self.house.gateway.lent() <= ARRIVING_MAX + INSIDE_MAX, "{} are lent", self.house.gateway.lent());
        self.outcome
    }

    /// Makes the guest follow the rules, drop what it owns, and receive as many frames as it has slots.
    fn assert_no_slot_is_lost(&mut self) {
        self.publish();
        self.house.fwps[0].guest.resume_at(self.rx_tail, self.tx_head);
        for slot in (0..).take(self.owners.len()) {
            if self.owners[usize::from(slot)] == Owner::Guest {
                let given_up = Descriptor { slot, port: PORT_DROP, ..Descriptor::default() };
                self.house.fwps[0].guest.send(given_up);
            }
        }
        self.collect();
        assert_eq!(self.outcome.violation, None);
        self.poll();
        // Its own slots come back, and nothing is received into them.
        self.publish();
        self.house.fwps[0].guest.resume_at(self.rx_tail, self.tx_head);
        let PoolHeader { slot_count, own_slots, slot_size, ring_entries, .. } = self.pool;
        let slot_count = slot_count - own_slots;
        self.house.assert_all_slots_free(0, Shape { slot_count, slot_size, ring_entries });
    }
}

/// Returns the frames that were counted as dropped on an FWP's account.
fn refused_by(counters: &FwpCounters) -> u64 {
    let moved = &counters.moved;
    let reasons =
        [&moved.dropped_no_slot, &moved.dropped_too_long, &moved.dropped_egress, &moved.dropped_instance_ended];
    reasons.iter().map(|reason| reason.value()).sum()
}

fn read_u32(memory: &[u8], place: usize) -> u32 {
    u32::from_le_bytes(memory[place..place + 4].try_into().expect("four bytes"))
}

fn write_u32(memory: &mut [u8], place: usize, value: u32) {
    memory[place..place + 4].copy_from_slice(&value.to_le_bytes());
}

fn read_descriptor(memory: &[u8], place: usize) -> Descriptor {
    let u16_at = |offset| u16::from_le_bytes([memory[place + offset], memory[place + offset + 1]]);
    let (slot, offset, len, port) = (u16_at(0), u16_at(2), u16_at(4), u16_at(6));
    let (flags, way, arrived) = (u16_at(8), u16_at(10), read_u32(memory, place + 12));
    Descriptor { slot, offset, len, port, flags, way, arrived }
}
