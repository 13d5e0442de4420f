use super::*;

fn line(tenant: &str, chain: &str, text: &str) -> LogLine {
    let origin = Origin {
        tenant: tenant.parse().unwrap(),
        chain: chain.parse().unwrap(),
        stage: 0,
        module: "m".parse().unwrap(),
        fwp: "7".into(),
    };
    LogLine { time_unix_ms: 1, level: Level::Info, origin: Arc::new(origin), text: text.into(), lost: 0 }
}

fn journal() -> Arc<Journal> {
    Arc::default()
}

fn texts(lines: &[LogLine]) -> Vec<&str> {
    lines.iter().map(|line| &*line.text).collect()
}

fn all(journal: &Arc<Journal>, filter: LogFilter) -> Vec<LogLine> {
    let mut reader = Reader::new(Arc::clone(journal), filter);
    let mut lines = Vec::new();
    loop {
        match &mut reader.read()[..] {
            [] => return lines,
            page => lines.extend_from_slice(page),
        }
    }
}

fn of_tenant(tenant: &str) -> LogFilter {
    LogFilter { tenant: Some(tenant.parse().unwrap()), ..LogFilter::default() }
}

#[test]
fn lines_are_read_once_in_the_order_in_which_they_were_logged() {
    let journal = journal();
    journal.push(line("b", "web", "one"));
    journal.push(line("a", "web", "two"));
    let mut reader = Reader::new(Arc::clone(&journal), LogFilter::default());
    assert_eq!(texts(&reader.read()), ["one", "two"]);
    assert_eq!(texts(&reader.read()), Vec::<&str>::new());
    journal.push(line("b", "web", "three"));
    assert_eq!(texts(&reader.read()), ["three"]);
}

#[test]
fn a_filter_lets_through_one_tenants_lines_and_one_chains() {
    let journal = journal();
    for (tenant, chain) in [("a", "web"), ("b", "web"), ("a", "dns")] {
        journal.push(line(tenant, chain, &format!("{tenant}/{chain}")));
    }
    assert_eq!(texts(&all(&journal, of_tenant("a"))), ["a/web", "a/dns"]);
    let filter = LogFilter { chain: Some("web".parse().unwrap()), ..of_tenant("a") };
    assert_eq!(texts(&all(&journal, filter)), ["a/web"]);
}

#[test]
fn a_tail_gives_the_last_matching_lines_and_those_that_follow() {
    let journal = journal();
    for number in 0..1000 {
        journal.push(line(if number % 2 == 0 { "a" } else { "b" }, "web", &number.to_string()));
    }
    let filter = LogFilter { tail: Some(2), ..of_tenant("a") };
    let mut reader = Reader::new(Arc::clone(&journal), filter);
    let lines = reader.read();
    assert_eq!(texts(&lines), ["996", "998"]);
    assert_eq!(lines[0].lost, 0);
    journal.push(line("a", "web", "later"));
    assert_eq!(texts(&reader.read()), ["later"]);
    assert_eq!(texts(&all(&journal, LogFilter { tail: Some(0), ..of_tenant("a") })), Vec::<&str>::new());
}

#[test]
fn a_tenant_that_floods_loses_its_own_oldest_lines_and_the_next_line_says_how_many() {
    let journal = journal();
    journal.push(line("quiet", "web", "still here"));
    let flood = 10_000;
    for number in 0..flood {
        journal.push(line("loud", "web", &format!("{number:04}")));
    }
    assert_eq!(texts(&all(&journal, of_tenant("quiet"))), ["still here"]);
    let kept = all(&journal, of_tenant("loud"));
    assert!(kept.len() < flood && kept.len() >= TENANT_BYTES_MAX / (LINE_BYTES + 8), "{} lines", kept.len());
    assert_eq!(kept[0].lost as usize, flood - kept.len());
    assert_eq!(*kept[0].text, format!("{:04}", flood - kept.len()));
    assert!(kept[1..].iter().all(|line| line.lost == 0));
}

#[test]
fn a_slow_reader_is_told_how_many_lines_it_has_missed() {
    let journal = journal();
    let mut reader = Reader::new(Arc::clone(&journal), LogFilter::default());
    journal.push(line("a", "web", "seen"));
    assert_eq!(texts(&reader.read()), ["seen"]);
    for _ in 0..5_000 {
        journal.push(line("a", "web", "flood"));
    }
    let mut got = 0;
    let mut lost = 0;
    loop {
        let page = reader.read();
        if page.is_empty() {
            break;
        }
        got += page.len() as u64;
        lost += page.iter().map(|line| line.lost).sum::<u64>();
    }
    assert_eq!(got + lost, 5_000);
    assert!(lost > 0);
}

#[test]
fn the_count_of_lost_lines_outlives_the_line_that_carries_it() {
    let journal = journal();
    journal.push(LogLine { lost: 5, ..line("a", "web", "first") });
    let long = "x".repeat(TENANT_BYTES_MAX - 2 * LINE_BYTES);
    journal.push(line("a", "web", &long));
    journal.push(line("a", "web", "last"));
    let kept = all(&journal, LogFilter::default());
    let lost: u64 = kept.iter().map(|line| line.lost).sum();
    assert_eq!(lost + kept.len() as u64, 5 + 3);
}

#[test]
fn all_tenants_together_have_a_bound_and_the_one_with_most_lines_loses_some() {
    let journal = journal();
    let text = "x".repeat(1024);
    for tenant in 0..300 {
        for _ in 0..300 {
            journal.push(line(&format!("t{tenant}"), "web", &text));
        }
    }
    journal.push(line("quiet", "web", "still here"));
    assert!(journal.rings().bytes <= JOURNAL_BYTES_MAX);
    assert!(journal.rings().by_tenant.values().all(|ring| ring.bytes <= TENANT_BYTES_MAX));
    assert_eq!(texts(&all(&journal, of_tenant("quiet"))), ["still here"]);
}

#[test]
fn tenants_that_have_been_silent_for_the_longest_are_forgotten_when_there_are_too_many() {
    let journal = journal();
    let mut reader = Reader::new(Arc::clone(&journal), of_tenant("t0"));
    for tenant in 0..=TENANTS_MAX {
        journal.push(line(&format!("t{tenant}"), "web", "hello"));
    }
    assert_eq!(journal.rings().by_tenant.len(), TENANTS_MAX);
    assert_eq!(texts(&reader.read()), Vec::<&str>::new());
    journal.push(line("t0", "web", "back"));
    assert_eq!(texts(&reader.read()), ["back"]);
}

#[tokio::test]
async fn a_waiting_reader_is_woken_by_a_line_and_by_the_end() {
    let journal = journal();
    let mut reader = Reader::new(Arc::clone(&journal), LogFilter::default());
    assert_eq!(texts(&reader.read()), Vec::<&str>::new());
    let writer = Arc::clone(&journal);
    let writing = std::thread::spawn(move || writer.push(line("a", "web", "news")));
    assert!(reader.more().await);
    assert_eq!(texts(&reader.read()), ["news"]);
    journal.close();
    assert!(!reader.more().await);
    writing.join().unwrap();
}
