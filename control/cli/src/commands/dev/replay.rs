//! `pinion dev --read`: sends a capture's frames through the function, each burst after every frame of the one before
//! was sent or dropped.
//!
//! A node's counters tell when that is: each frame was sent, or was dropped and counted. They do not tell which frames
//! a function holds back, or generates itself. In that case the burst ends when no counter has changed for a while.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use pinion_control::manifest::Contents;
use pinion_control::model::{Chain, Match, Policy, Protocol, Rule, RuleName, VlanId};

use super::account::{Account, Records};
use super::capture::{Capture, Captured, LeftOut, Record, Sink, no_ethernet};
use super::session::Session;
use super::wire::{Listening, Wire};
use super::{BadInput, Function, Replay, Which, node};
use crate::args::Format;

/// How long to wait for further frames when functions have sent more frames than they received.
const LAST_PATIENCE: Duration = Duration::from_millis(100);
/// After this many polls without success, the next ones are `LOOK_INTERVAL` apart.
const QUICK_LOOKS: u32 = 4;
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// VLAN tags, from the outer one: none, one or two.
type Tags = (Option<VlanId>, Option<VlanId>);

/// Replays the capture once, to its end or to where it is damaged.
pub(super) async fn once(function: &Function, replay: &Replay, format: Format) -> anyhow::Result<()> {
    if replay.write.as_ref().is_some_and(|write| is_same(&replay.read, write)) {
        let problem = "it is also the input: write the output to another file".to_owned();
        return Err(BadInput::Capture { path: replay.read.clone(), problem }.into());
    }
    let capture = Capture::open(&replay.read)?;
    let tags = tags_in(&capture, &replay.read)?;
    let folder = node::folder()?;
    let listening = Listening::new(folder.path(), function.ports()?)?;
    let mut session = Session::start_in(folder, function, &listening.ports()?, format).await?;
    session.deploy(function, |contents| Ok(with_rules(function, replay, &tags, contents)?)).await?;
    session.until_ready().await?;
    let wire = listening.wired(Sink::new(replay.write.as_deref())?)?;
    let player =
        Player { session: &mut session, wire: &wire, put: 0, account: Account::default(), records: Records::default() };
    let (mut account, damage) = player.play_all(&capture, replay).await?;
    session.stop().await?;
    let came = wire.finish()?;
    account.sent = came.frames;
    account.replies = Some(came.replies);
    account.print(format)?;
    damage.map_or(Ok(()), |damage| Err(damage.into()))
}

/// Reads the whole capture once, so that one with no frame for a function is refused before anything is built. If the
/// capture is damaged, the frames before the damage count.
fn tags_in(capture: &Capture, path: &Path) -> Result<BTreeSet<Tags>, BadInput> {
    let mut tags = BTreeSet::from([(None, None)]);
    let (mut frames, mut others) = (0_u64, 0_u64);
    for record in capture.records()? {
        match record {
            Ok(Record::Frame(captured)) => {
                frames += 1;
                tags.insert(tags_of(&captured.frame));
            }
            Ok(Record::LeftOut(LeftOut::NotEthernet)) => others += 1,
            Ok(Record::LeftOut(_) | Record::UnknownBlock) => {}
            Err(damage) if frames == 0 => return Err(damage),
            Err(_) => {}
        }
    }
    if frames == 0 && others > 0 { Err(no_ethernet(path)) } else { Ok(tags) }
}

/// Returns whether two paths lead to one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    identity(one).is_some_and(|one| Some(one) == identity(other))
}

/// Parses VLAN tags as a node does: a priority tag (VLAN 0) does not count.
fn tags_of(frame: &[u8]) -> Tags {
    let (mut at, mut tags) = (12, Vec::new());
    while let Some([a, b, c, d]) = frame.get(at..).and_then(|rest| rest.first_chunk())
        && matches!(u16::from_be_bytes([*a, *b]), 0x8100 | 0x88a8)
    {
        tags.extend(VlanId::new(u16::from_be_bytes([*c, *d]) & 0xfff).ok());
        at += 4;
    }
    (tags.first().copied(), tags.get(1).copied())
}

/// Returns the manifest with rules that send each frame to the chain, unless its own rules are to decide.
fn with_rules(
    function: &Function,
    replay: &Replay,
    tags: &BTreeSet<Tags>,
    mut contents: Contents,
) -> Result<Contents, BadInput> {
    let Which::AllTo(name) = &replay.which else { return Ok(contents) };
    let chain = match (&contents.chains[..], name) {
        ([only], None) => only,
        (chains, Some(name)) => chains
            .iter()
            .find(|chain| chain.name == *name)
            .ok_or_else(|| function.unclear(format!("it has no chain {name}")))?,
        ([], None) => return Err(function.unclear("it has no chain for frames to go through".to_owned())),
        (chains, None) => {
            let names: Vec<&str> = chains.iter().map(|chain| chain.name.as_str()).collect();
            let problem = format!("it has the chains {}: say by --chain which is to get the frames", names.join(", "));
            return Err(function.unclear(problem));
        }
    };
    let own = contents.rules.iter().find(|rule| rule.tenant == chain.tenant && rule.chain == chain.name);
    let policy = own.map_or(Policy::Shared, |rule| rule.policy);
    let matchers = tags.iter().flat_map(|tags| everything_in(*tags)).enumerate();
    contents.rules = matchers.map(|(at, matcher)| rule_for(at, matcher, chain, policy)).collect();
    Ok(contents)
}

/// Destinations and messages that only rules match that name them: groups, all hosts, and ICMP errors.
const GROUPS: [&str; 3] = ["224.0.0.0/4", "255.255.255.255", "ff00::/8"];
const ERRORS: [(Protocol, &[u8]); 2] = [(Protocol::ICMP, &[3, 4, 11, 12]), (Protocol::ICMPV6, &[1, 2, 3, 4])];

/// Returns matches that together match all packets with these tags.
fn everything_in((vlan, inner_vlan): Tags) -> impl Iterator<Item = Match> {
    let of_tags = move || Match { vlan, inner_vlan, ..Match::default() };
    let groups = GROUPS.map(|group| Some(group.parse().expect("it is a prefix")));
    let errors = ERRORS.into_iter().flat_map(|(protocol, types)| types.iter().map(move |kind| (protocol, *kind)));
    std::iter::once(of_tags())
        .chain(groups.into_iter().map(move |destination| Match { destination, ..of_tags() }))
        .chain(errors.map(move |(protocol, icmp_type)| Match {
            protocol: Some(protocol),
            icmp_type: Some(icmp_type),
            ..of_tags()
        }))
}

fn rule_for(at: usize, matcher: Match, chain: &Chain, policy: Policy) -> Rule {
    Rule {
        tenant: chain.tenant.clone(),
        name: RuleName::new(format!("frames-{at}")).expect("it is a rule's name"),
        priority: 0,
        matcher,
        policy,
        chain: chain.name.clone(),
    }
}

/// Sends frames in, and waits for what happens to them.
struct Player<'a> {
    session: &'a mut Session,
    wire: &'a Wire,
    put: u64,
    account: Account,
    records: Records,
}

impl Player<'_> {
    /// Replays everything that can be read. Returns the counts, and why the rest can't be read.
    async fn play_all(mut self, capture: &Capture, replay: &Replay) -> anyhow::Result<(Account, Option<BadInput>)> {
        let mut damage = None;
        let mut burst = Vec::new();
        for record in capture.records()? {
            match record {
                Ok(Record::Frame(captured)) => burst.push(captured),
                Ok(Record::LeftOut(reason)) => self.records.leave_out(reason, 1),
                Ok(Record::UnknownBlock) => self.records.unknown_blocks += 1,
                Err(found) => damage = Some(found),
            }
            if burst.len() == replay.burst {
                self.play(std::mem::take(&mut burst), replay.patience).await?;
            }
        }
        self.play(burst, replay.patience).await?;
        self.records.damage = damage.as_ref().map(ToString::to_string);
        Ok((self.finish(replay.linger).await?, damage))
    }

    async fn play(&mut self, mut burst: Vec<Captured>, patience: Duration) -> anyhow::Result<()> {
        let all = burst.len();
        self.wire.put(&mut burst)?;
        self.put += burst.len() as u64;
        self.records.leave_out(LeftOut::TooLong, (all - burst.len()) as u64);
        burst.iter().for_each(|captured| self.records.count(captured));
        self.settle(patience).await
    }

    /// Waits until each frame was sent or dropped, or no counter has changed for `patience`.
    async fn settle(&mut self, patience: Duration) -> anyhow::Result<()> {
        let (mut moved, mut looks) = (Instant::now(), 0);
        loop {
            let account = self.session.account().await?;
            if account != self.account {
                self.account = account;
                moved = Instant::now();
            }
            let all_came = self.wire.came().frames >= self.account.sent;
            if (all_came && self.account.answered() >= self.put) || moved.elapsed() > patience {
                return Ok(());
            }
            looks += 1;
            if looks > QUICK_LOOKS {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        }
    }

    /// Waits for the last frames, and returns the counts.
    async fn finish(mut self, linger: Duration) -> anyhow::Result<Account> {
        self.settle(linger).await?;
        let mut counted = self.account.answered();
        // More than were received: a function copies or generates frames, and more may follow.
        while counted > self.put {
            tokio::time::sleep(LAST_PATIENCE).await;
            self.account = self.session.account().await?;
            if self.account.answered() == counted {
                break;
            }
            counted = self.account.answered();
        }
        self.account.received = self.put;
        self.account.kept = Some(self.put.saturating_sub(counted));
        self.account.records = self.records;
        Ok(self.account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_for_all_frames_name_groups_and_errors_in_each_vlan() {
        let vlan = VlanId::new(7).ok();
        let matches: Vec<Match> = everything_in((vlan, None)).collect();
        assert!(matches.iter().all(|matcher| matcher.vlan == vlan && matcher.check().is_ok()));
        let shown: Vec<String> = matches.iter().map(Match::to_string).collect();
        assert_eq!(shown[..3], ["vlan 7", "vlan 7, destination 224.0.0.0/4", "vlan 7, destination 255.255.255.255/32"]);
        assert_eq!((shown.len(), shown[11].as_str()), (12, "vlan 7, protocol icmpv6, icmp-type 4"));
    }

    #[test]
    fn tags_are_read_as_a_node_does() {
        let frame = |words: &[u16]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            [&[0; 12], &bytes[..]].concat()
        };
        let vlan = |id| VlanId::new(id).ok();
        assert_eq!(tags_of(&frame(&[0x0800])), (None, None));
        assert_eq!(tags_of(&frame(&[0x8100, 0xe064, 0x0800])), (vlan(100), None));
        assert_eq!(tags_of(&frame(&[0x88a8, 100, 0x8100, 20, 0x0800])), (vlan(100), vlan(20)));
        assert_eq!(tags_of(&frame(&[0x8100, 0xe000, 0x0800])), (None, None));
        assert_eq!(tags_of(&[0; 13]), (None, None));
    }
}
