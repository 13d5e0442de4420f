//! Chains of several stages on the fake node, as a node wires them.

#![cfg(not(target_family = "wasm"))]

use pinion_sdk::headers::{Headers, Mac, Pair, set_macs, swap_macs};
use pinion_sdk::metrics::Counter;
use pinion_sdk::testing::{
    Chain, Departure, Edge, Exit, Frame, Harness, LoopHarness, advance_clock_ns, message, payload, take_log,
};
use pinion_sdk::{
    Batch, Checksum, Direction, Function, Held, InitError, Io, Looping, Message, Packet, PacketFunction, Slots, clock,
    info,
};

/// Adds its name to each frame, and does what the frame's first byte says to this stage.
///
/// | byte | what the stage with the name does |
/// |---|---|
/// | its name in lower case | replies, once |
/// | 0 for A, 1 for B, ... | sends by output 1 |
/// | 1 for A, 2 for B, ..., as a number | drops |
struct Marker(u8);

impl PacketFunction for Marker {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        config.first().map(|name| Self(*name)).ok_or_else(|| InitError::new("a name is needed"))
    }

    fn handle(&mut self, mut packet: Packet<'_>) {
        let mark = match (packet.direction(), packet.is_reply()) {
            (None, _) => '-',
            (Some(Direction::Forward), false) => '>',
            (Some(Direction::Forward), true) => '}',
            (Some(Direction::Backward), false) => '<',
            (Some(Direction::Backward), true) => '{',
        };
        let len = packet.len();
        packet.set_len(len + 2).unwrap();
        packet.data_mut()[len..].copy_from_slice(&[self.0, mark as u8]);
        let order = packet.data()[0];
        match order {
            _ if order == self.0.to_ascii_lowercase() => {
                packet.data_mut()[0] = b'.';
                packet.reply();
            }
            _ if order == self.0 - b'A' + b'0' => packet.send_to(1),
            _ if order == self.0 - b'A' + 1 => packet.discard(),
            _ => packet.send(),
        }
    }
}

fn three() -> Chain {
    [b"A", b"B", b"C"].into_iter().fold(Chain::new(), |chain, name| chain.stage::<Marker>(name).unwrap())
}

/// Returns the stages that a frame has passed, and how it left the chain.
fn course(chain: &mut Chain, port: u16, order: u8) -> (String, Exit, usize) {
    let Departure { frame, stage, exit, bytes } =
        chain.deliver_from(port, &[&[&[order], &[0; 19][..]].concat()]).remove(0);
    assert_eq!(frame, Some(0));
    (String::from_utf8(bytes[20..].to_vec()).unwrap(), exit, stage)
}

fn left(passed: &str, exit: Exit, stage: usize) -> (String, Exit, usize) {
    (passed.to_owned(), exit, stage)
}

#[test]
fn a_frame_passes_all_stages_and_leaves_where_it_came_in_or_by_the_egress() {
    assert_eq!(course(&mut three(), 5, b'.'), left("A-B-C-", Exit::Port(5), 2));
    assert_eq!(course(&mut three().egress(1), 5, b'.'), left("A-B-C-", Exit::Port(1), 2));
}

#[test]
fn a_reply_in_a_chain_without_a_way_back_leaves_at_once_where_its_frame_came_in() {
    let mut chain = three().egress(1);
    assert_eq!(course(&mut chain, 5, b'b'), left("A-B-", Exit::Port(5), 1));
    assert_eq!(course(&mut chain, 5, 2), left("A-B-", Exit::Dropped, 1));
}

#[test]
fn further_outputs_lead_where_it_is_said() {
    let mut chain =
        three().egress(1).output(0, 1, Edge::Stage(2)).output(1, 1, Edge::Port(9)).output(2, 1, Edge::Egress);
    assert_eq!(course(&mut chain, 5, b'0'), left("A-C-", Exit::Port(1), 2));
    assert_eq!(course(&mut chain, 5, b'1'), left("A-B-", Exit::Port(9), 1));
    assert_eq!(course(&mut chain, 5, b'2'), left("A-B-C-", Exit::Port(1), 2));
    let mut chain = three().output(0, 0, Edge::Stage(2));
    assert_eq!(course(&mut chain, 5, b'.'), left("A-C-", Exit::Port(5), 2));
}

#[test]
fn an_output_may_branch_by_what_is_in_the_frame_that_the_stage_sends() {
    let by_length = |frame: &[u8]| match frame.len() {
        22 => Some(Edge::Stage(2)),
        24 => Some(Edge::Port(9)),
        _ => None,
    };
    let mut chain = three().egress(1).output(0, 1, Edge::Stage(1));
    chain = chain.branch(0, 0, Edge::Drop, by_length).branch(1, 0, Edge::Drop, by_length);
    assert_eq!(course(&mut chain, 5, b'.'), left("A-C-", Exit::Port(1), 2));
    assert_eq!(course(&mut chain, 5, b'0'), left("A-B-", Exit::Port(9), 1));
    let mut chain = three().branch(2, 0, Edge::Drop, |_| None);
    assert_eq!(course(&mut chain, 5, b'.'), left("A-B-C-", Exit::Dropped, 2));
}

#[test]
fn a_chain_may_be_entered_by_any_stage_by_what_is_in_a_frame() {
    let mut chain = three().egress(1).entry(Edge::Stage(0), |frame| match frame[0] {
        b'x' => Some(Edge::Stage(2)),
        b'z' => Some(Edge::Drop),
        _ => None,
    });
    assert_eq!(course(&mut chain, 5, b'.'), left("A-B-C-", Exit::Port(1), 2));
    assert_eq!(course(&mut chain, 5, b'x'), left("C-", Exit::Port(1), 2));
    assert_eq!(course(&mut chain, 5, b'z'), left("", Exit::Dropped, 0));
}

#[test]
fn messages_and_news_of_flows_take_the_default_of_a_branch_whatever_its_matches_are() {
    let mut news_of_flow = vec![0; 64];
    news_of_flow[12..14].copy_from_slice(&[0x88, 0xb6]);
    let frames = [message(b""), news_of_flow, vec![0; 64]];
    let passed = |mut chain: Chain| {
        let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let departures = chain.deliver(&frames);
        let of = |number| departures.iter().find(|it| it.frame == Some(number)).unwrap();
        [0, 1, 2].map(|number| {
            (String::from_utf8_lossy(&of(number).bytes[frames[number].len()..]).into_owned(), of(number).exit)
        })
    };
    let seen = |passed: &str, exit| (passed.to_owned(), exit);
    assert_eq!(
        passed(three().entry(Edge::Stage(1), |_| Some(Edge::Stage(2)))),
        [seen("B-C-", Exit::Port(0)), seen("B-C-", Exit::Port(0)), seen("C-", Exit::Port(0))]
    );
    assert_eq!(
        passed(three().branch(0, 0, Edge::Stage(2), |_| Some(Edge::Drop))),
        [seen("A-C-", Exit::Port(0)), seen("A-C-", Exit::Port(0)), seen("A-", Exit::Dropped)]
    );
}

#[test]
#[should_panic(expected = "stage 1 cannot lead to stage 0: a chain has no loops")]
fn a_branch_that_leads_back_is_a_mistake_of_the_test() {
    three().branch(1, 0, Edge::Egress, |_| Some(Edge::Stage(0))).deliver(&[&[b'.'; 20]]);
}

#[test]
#[should_panic(expected = "the entry leads to stage 3, which is not there")]
fn an_entry_to_no_stage_is_a_mistake_of_the_test() {
    three().entry(Edge::Stage(3), |_| None).deliver(&[&[b'.'; 20]]);
}

#[test]
#[should_panic(expected = "the entry leads out of the chain: packets pass at least one stage")]
fn an_entry_that_leads_out_of_the_chain_is_a_mistake_of_the_test() {
    three().entry(Edge::Stage(0), |_| Some(Edge::Egress)).deliver(&[&[b'.'; 20]]);
}

#[test]
#[should_panic(expected = "here a chain has branches or a way back, and not both")]
fn branches_and_a_way_back_are_not_for_the_fake_node() {
    let _ = three().branch(1, 0, Edge::Egress, |_| None).reverse(&[1], 0);
}

#[test]
#[should_panic(expected = "stage 0 sent to output 1, which leads nowhere: say where by Chain::output")]
fn an_output_that_leads_nowhere_is_a_mistake_of_the_test() {
    three().deliver(&[&[b'0'; 20]]);
}

#[test]
#[should_panic(expected = "stage 1 cannot lead to stage 1: a chain has no loops")]
fn a_chain_has_no_loops() {
    let _ = three().output(1, 1, Edge::Stage(1));
}

#[test]
fn frames_of_the_other_side_pass_the_stages_backwards() {
    let mut chain = three().egress(1).reverse(&[1, 2], 0).output(1, 1, Edge::Port(9));
    assert_eq!(course(&mut chain, 0, b'.'), left("A>B>C>", Exit::Port(1), 2));
    assert_eq!(course(&mut chain, 2, b'.'), left("C<B<A<", Exit::Port(0), 0));
    // Further outputs that lead out of the node do so in both directions.
    assert_eq!(course(&mut chain, 2, b'1'), left("C<B<", Exit::Port(9), 1));
}

#[test]
fn on_the_way_back_each_output_that_leads_to_a_stage_leads_to_the_stage_before() {
    let mut chain = three()
        .egress(1)
        .reverse(&[1], 0)
        .output(0, 1, Edge::Stage(1))
        .output(1, 1, Edge::Stage(2))
        .output(2, 1, Edge::Drop);
    assert_eq!(course(&mut chain, 0, b'1'), left("A>B>C>", Exit::Port(1), 2));
    assert_eq!(course(&mut chain, 1, b'1'), left("C<B<A<", Exit::Port(0), 0));
    assert_eq!(course(&mut chain, 1, b'0'), left("C<B<A<", Exit::Port(0), 0));
    assert_eq!(course(&mut chain, 1, b'2'), left("C<", Exit::Dropped, 2));
}

#[test]
fn a_reply_goes_towards_where_its_frame_came_in_through_the_stages_on_that_side() {
    let mut chain = three().egress(1).reverse(&[1, 2], 0);
    assert_eq!(course(&mut chain, 5, b'c'), left("A>B>C>B{A{", Exit::Port(0), 0));
    assert_eq!(course(&mut chain, 2, b'a'), left("C<B<A<B}C}", Exit::Port(1), 2));
    // From the stage next to the port, by that port.
    assert_eq!(course(&mut chain, 5, b'a'), left("A>", Exit::Port(5), 0));
    assert_eq!(course(&mut chain, 2, b'c'), left("C<", Exit::Port(2), 2));
}

/// Replies to everything.
struct Mirror;

impl PacketFunction for Mirror {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self)
    }

    fn handle(&mut self, packet: Packet<'_>) {
        packet.reply();
    }
}

#[test]
fn a_reply_to_a_reply_goes_on_in_the_same_direction() {
    let chain = || Chain::new().stage::<Marker>(b"A").unwrap().stage::<Mirror>(b"").unwrap();
    let mut chain = chain().stage::<Mirror>(b"").unwrap().stage::<Marker>(b"D").unwrap().egress(1).reverse(&[1], 0);
    assert_eq!(course(&mut chain, 0, b'.'), left("A>A{", Exit::Port(0), 0));
    assert_eq!(course(&mut chain, 1, b'.'), left("D<D}", Exit::Port(1), 3));
    let mut chain = Chain::new().stage::<Marker>(b"A").unwrap().stage::<Again>(b"").unwrap();
    chain = chain.stage::<Mirror>(b"").unwrap().egress(1).reverse(&[1], 0);
    assert_eq!(course(&mut chain, 0, b'.'), left("A>A{", Exit::Port(0), 0));
    assert_eq!(course(&mut chain, 1, b'.'), left("", Exit::Port(1), 2));
}

/// Replies to replies.
struct Again;

impl PacketFunction for Again {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self)
    }

    fn handle(&mut self, packet: Packet<'_>) {
        if packet.is_reply() { packet.reply() } else { packet.send() }
    }
}

/// Answers messages, and drops all else.
struct Answers;

impl Function for Answers {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self)
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for packet in batch {
            assert_eq!(packet.direction(), None);
            if let Ok(message) = Message::of(packet) {
                message.answer(b"yes").unwrap();
            }
        }
    }
}

#[test]
fn messages_go_forwards_and_answers_to_them_leave_at_once() {
    let mut chain = three().stage::<Answers>(b"").unwrap().egress(1).reverse(&[1], 0);
    let Departure { exit, stage, bytes, .. } = chain.deliver_from(1, &[&message(b"ready?")]).remove(0);
    assert_eq!((exit, stage, payload(&bytes)), (Exit::Port(1), 3, &b"yes"[..]));
}

#[test]
fn the_order_and_the_indices_of_frames_stay() {
    let mut chain = three();
    let frames: Vec<[u8; 20]> = (0..600_u16)
        .map(|number| [b'.', (number >> 8) as u8, number as u8].repeat(7)[..20].try_into().unwrap())
        .collect();
    let frames: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
    let departures = chain.deliver(&frames);
    assert!(departures.iter().map(|it| it.frame).eq((0..600).map(Some)));
    assert!(departures.iter().zip(&frames).all(|(left, frame)| left.bytes[..20] == **frame));
}

/// Sends each packet after a millisecond.
#[derive(Default)]
struct Late(Vec<(u64, Held)>);

impl Function for Late {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self::default())
    }

    fn handle(&mut self, batch: Batch<'_>) {
        self.0.extend(batch.map(|packet| (clock::now_ns() + 1_000_000, packet.hold())));
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.0.first().map(|(due_ns, _)| *due_ns)
    }

    fn expire(&mut self, slots: Slots<'_>) {
        let now_ns = clock::now_ns();
        for (_, held) in self.0.extract_if(.., |(due_ns, _)| *due_ns <= now_ns) {
            slots.take(held).send();
        }
    }
}

#[test]
fn time_passes_for_all_stages_and_what_they_held_goes_on() {
    let late = |chain: Chain| chain.stage::<Late>(b"").unwrap();
    let mut chain = late(late(Chain::new())).stage::<Marker>(b"C").unwrap();
    advance_clock_ns(7_000);
    assert_eq!(chain.deliver(&[&[b'.'; 20], &[3; 20]]), []);
    assert_eq!(chain.let_pass_ns(1_999_000), []);
    let left = chain.let_pass_ns(1_000);
    assert_eq!(left.iter().map(|it| it.exit).collect::<Vec<_>>(), [Exit::Port(0), Exit::Dropped]);
    assert_eq!((clock::now_ns(), left[0].frame), (2_007_000, None));
    assert_eq!(chain.let_pass_ns(5_000_000), []);
    assert_eq!(clock::now_ns(), 7_007_000);
}

/// Leaves the checksums of what it has changed to the node.
struct Offload;

impl PacketFunction for Offload {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self)
    }

    fn handle(&mut self, mut packet: Packet<'_>) {
        let headers = Headers::of(packet.data()).unwrap();
        assert_eq!(headers.l4_checksum(packet.data()), Checksum::Good);
        headers.payload_mut(packet.data_mut()).unwrap()[0] += 1;
        packet.complete_checksums();
        packet.send();
    }
}

#[test]
fn checksums_that_a_stage_leaves_to_the_node_are_right_at_the_next_one() {
    let mut chain = Chain::new().stage::<Offload>(b"").unwrap().stage::<Offload>(b"").unwrap();
    let udp = |payload: &[u8]| Frame::udp("10.0.0.1:5000", "10.0.0.2:53").payload(payload).bytes();
    assert_eq!(chain.deliver(&[&udp(b"a")])[0].bytes, udp(b"c"));
}

/// Makes a packet for each that it gets, the same way, and finishes after that.
struct Twin;

impl Function for Twin {
    const OWN_SLOTS: u16 = 64;

    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self)
    }

    fn handle(&mut self, mut batch: Batch<'_>) {
        let slots = batch.slots();
        if let Some(packet) = batch.next() {
            let mut twin = slots.make(&[0; 20], packet.way()).unwrap();
            set_macs(twin.data_mut(), Pair { source: Mac([1; 6]), destination: Mac([2; 6]) }).unwrap();
            swap_macs(twin.data_mut()).unwrap();
            packet.send();
            twin.send();
            pinion_sdk::finish();
        }
    }
}

#[test]
fn what_a_stage_makes_goes_its_way_and_after_its_end_frames_go_nowhere() {
    let mut chain = three().stage::<Twin>(b"").unwrap().stage::<Marker>(b"E").unwrap().egress(1).reverse(&[1], 0);
    let departures = chain.deliver_from(0, &[&[b'.'; 20]]);
    let seen = |departures: &[Departure]| departures.iter().map(|it| (it.frame, it.stage, it.exit)).collect::<Vec<_>>();
    assert_eq!(seen(&departures), [(Some(0), 4, Exit::Port(1)), (None, 4, Exit::Port(1))]);
    assert_eq!(&departures[1].bytes[..12], &[[1; 6], [2; 6]].concat());
    assert_eq!(&departures[1].bytes[20..], b"E>");
    let harness: &mut Harness<Twin> = chain.harness(3);
    assert!(harness.finished());
    assert_eq!(seen(&chain.deliver_from(0, &[&[b'.'; 20]])), [(Some(0), 3, Exit::InstanceEnded)]);
}

/// Collects packets, and sends them on together a millisecond after the first one. A packet that begins with its configuration ends it.
struct Collector {
    end: u8,
    batches: Counter,
}

impl Looping for Collector {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let end = *config.first().ok_or("the byte that ends it is needed")?;
        Ok(Self { end, batches: Counter::new("batches", "Batches sent on.") })
    }

    fn run(&mut self, io: &mut Io<'_>) {
        loop {
            let mut collected: Vec<Held> = io.wait().map(Packet::hold).collect();
            let until_ns = clock::now_ns() + 1_000_000;
            while let Some(more) = io.wait_until(until_ns) {
                collected.extend(more.map(Packet::hold));
            }
            let mut is_over = false;
            for held in collected {
                let packet = io.slots().take(held);
                is_over |= packet.data()[0] == self.end;
                packet.send();
            }
            self.batches.increment();
            if is_over {
                info!("the end");
                return;
            }
        }
    }
}

/// A function with a loop between two of the usual form.
fn with_a_loop() -> Chain {
    let chain = Chain::new().stage::<Marker>(b"A").unwrap().looping_stage::<Collector>(b"!").unwrap();
    chain.stage::<Marker>(b"C").unwrap().egress(1).reverse(&[1], 0)
}

#[test]
fn a_stage_with_a_loop_gets_what_others_send_and_the_time_of_all() {
    let mut chain = with_a_loop();
    assert_eq!(chain.deliver_from(0, &[&[b'.'; 20]]), []);
    assert_eq!(chain.let_pass_ns(500_000), []);
    assert_eq!(chain.deliver_from(1, &[&[b'.'; 20]]), []);
    assert_eq!(chain.let_pass_ns(499_000), []);
    let left = chain.let_pass_ns(1_000);
    let passed = |at: usize| (str::from_utf8(&left[at].bytes[20..]).unwrap(), left[at].exit, left[at].stage);
    assert_eq!([passed(0), passed(1)], [("A>C>", Exit::Port(1), 2), ("C<A<", Exit::Port(0), 0)]);
    assert_eq!((left.len(), clock::now_ns()), (2, 1_000_000));
    let harness: &mut LoopHarness<Collector> = chain.loop_harness(1);
    assert_eq!(harness.metric("batches", &[]), Some(1));
}

#[test]
fn stages_with_loops_wait_one_after_another_and_each_for_its_own_deadline() {
    let mut chain = Chain::new().looping_stage::<Collector>(b"!").unwrap().looping_stage::<Collector>(b"!").unwrap();
    assert_eq!(chain.deliver(&[&[b'1'; 20]]), []);
    assert_eq!(chain.let_pass_ns(1_500_000), []);
    assert_eq!(chain.deliver(&[&[b'2'; 20]]), []);
    let first: Vec<u8> = chain.let_pass_ns(500_000).iter().map(|left| left.bytes[0]).collect();
    let second: Vec<u8> = chain.let_pass_ns(1_500_000).iter().map(|left| left.bytes[0]).collect();
    assert_eq!((first, second), (vec![b'1'], vec![b'2']));
}

#[test]
fn after_the_end_of_a_loop_frames_go_nowhere() {
    let mut chain = with_a_loop();
    assert_eq!(chain.deliver_from(0, &[&[b'!'; 20]]), []);
    let exits = |left: &[Departure]| left.iter().map(|it| (it.stage, it.exit)).collect::<Vec<_>>();
    assert_eq!(exits(&chain.let_pass_ns(5_000_000)), [(2, Exit::Port(1))]);
    assert_eq!(take_log()[0].1, "the end");
    assert!(chain.loop_harness::<Collector>(1).finished());
    assert_eq!(exits(&chain.deliver_from(0, &[&[b'.'; 20]])), [(1, Exit::InstanceEnded)]);
    assert_eq!(exits(&chain.let_pass_ns(5_000_000)), []);
}

#[test]
#[should_panic(expected = "the byte that ends it is needed")]
fn a_stage_with_a_loop_can_refuse_its_configuration() {
    Chain::new().looping_stage::<Collector>(b"").unwrap();
}

#[test]
#[should_panic(expected = "stage 0 has no ")]
fn a_stage_of_the_usual_form_has_no_loops_harness() {
    three().loop_harness::<Collector>(0);
}
