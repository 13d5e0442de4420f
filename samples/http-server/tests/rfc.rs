//! The answers to raw requests, section by section of RFC 9110 and RFC 9112.

mod site;

use std::fs::{self, File};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use site::{Site, body, field, status};

/// `/ten` is of ten bytes; `/some` is larger than what is sent at once.
const PAGES: &str = "page / front\npage /ten 012345678\npage /other 876543210\nfill /empty 0\nfill /some 100000\n";

/// Returns an answer in short: its status, the fields of interest, and its body unless that is its status. Checks what
/// holds for all answers.
fn short(answer: &str, is_head: bool) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {answer:?}"));
    let status = status(answer).strip_prefix("HTTP/1.1 ").unwrap_or_else(|| panic!("{head}"));
    let mut text = status[..3].to_owned();
    for name in ["Allow", "Location", "Content-Range", "Connection"] {
        if let Some(value) = field(answer, name) {
            text += &format!(", {name}: {value}");
        }
    }
    let len = field(answer, "Content-Length").map(|len| len.parse::<usize>().unwrap());
    let is_of_file = ["200", "206", "304"].contains(&&status[..3]);
    assert_eq!(field(answer, "ETag").is_some(), is_of_file, "{head}");
    assert_eq!(field(answer, "Accept-Ranges").is_some(), status.starts_with("200"), "{head}");
    let has_content = !status.starts_with("304");
    assert_eq!((len.is_some(), field(answer, "Content-Type").is_some()), (has_content, has_content), "{head}");
    if is_head || !has_content {
        assert_eq!(body, "", "{head}");
    } else {
        assert_eq!(body.len(), len.unwrap(), "{head}");
        if body != format!("{status}\n") {
            text += &format!(": {}", body.trim_end_matches('\n'));
        }
    }
    text
}

/// Checks the answers to requests, each on a connection of its own. In a request, `TAG` is the tag of `/ten`, and `OTHER`
/// that of `/other`.
#[track_caller]
fn check(site: &mut Site, cases: &[(&str, &str)]) {
    let tag_of = |site: &mut Site, path: &str| {
        let answer = site.ask_anew(format!("HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
        field(&answer, "ETag").map(str::to_owned).unwrap_or_default()
    };
    let (tag, other) = (tag_of(site, "/ten"), tag_of(site, "/other"));
    assert_ne!(tag, other);
    for (request, expected) in cases {
        let raw = request.replace("TAG", &tag).replace("OTHER", &other);
        let answer = site.ask_anew(&raw);
        assert_eq!(short(&answer, raw.starts_with("HEAD ")), *expected, "{raw}");
    }
}

/// Returns requests for `/ten` with these fields.
fn with_fields(method: &str, cases: &[(&'static str, &'static str)]) -> Vec<(String, &'static str)> {
    let request = |lines: &str| format!("{method} /ten HTTP/1.1\r\nHost: x\r\n{lines}\r\n\r\n");
    cases.iter().map(|(lines, expected)| (request(lines), *expected)).collect()
}

#[track_caller]
fn check_fields(site: &mut Site, method: &str, cases: &[(&'static str, &'static str)]) {
    let cases = with_fields(method, cases);
    check(site, &cases.iter().map(|(request, expected)| (request.as_str(), *expected)).collect::<Vec<_>>());
}

#[test]
fn rfc_9110_section_9_methods() {
    check(
        &mut Site::new(PAGES),
        &[
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "200: front"),
            ("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", "200"),
            ("HEAD /none HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
            ("HEAD /none HTTP/1.1\r\n\r\n", "400, Connection: close"),
            ("HEAD / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", "501, Connection: close"),
            ("HEAD / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n", "417, Connection: close"),
            ("HEAD https://x/ HTTP/1.1\r\nHost: x\r\n\r\n", "421, Connection: close"),
            ("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "405, Allow: GET, HEAD"),
            ("PUT /none HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab", "405, Allow: GET, HEAD"),
            ("DELETE /ten HTTP/1.1\r\nHost: x\r\n\r\n", "405, Allow: GET, HEAD"),
            ("PATCH /ten HTTP/1.1\r\nHost: x\r\n\r\n", "405, Allow: GET, HEAD"),
            ("TRACE / HTTP/1.1\r\nHost: x\r\nCookie: secret\r\n\r\n", "405, Allow: GET, HEAD"),
            ("OPTIONS / HTTP/1.1\r\nHost: x\r\n\r\n", "405, Allow: GET, HEAD"),
            ("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "405, Allow: GET, HEAD"),
            ("CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", "405, Allow: GET, HEAD, Connection: close"),
            ("BREW / HTTP/1.1\r\nHost: x\r\n\r\n", "501, Connection: close"),
            ("get / HTTP/1.1\r\nHost: x\r\n\r\n", "501, Connection: close"),
        ],
    );
}

#[test]
fn rfc_9110_section_13_conditions_by_tags() {
    let mut site = Site::new(PAGES);
    check_fields(
        &mut site,
        "GET",
        &[
            ("If-None-Match: TAG", "304"),
            ("If-None-Match: W/TAG", "304"),
            ("If-None-Match: OTHER", "200: 012345678"),
            ("If-None-Match: OTHER, TAG", "304"),
            ("If-None-Match: OTHER,W/TAG", "304"),
            ("If-None-Match: \t,, OTHER ,\tTAG\t,", "304"),
            ("If-None-Match: \"\", \"a,TAG\"", "200: 012345678"),
            ("If-None-Match: \"a,b\", TAG", "304"),
            ("If-None-Match: \"a, b\", TAG", "200: 012345678"),
            ("If-None-Match: OTHER\r\nIf-None-Match: TAG", "304"),
            ("If-None-Match: *", "304"),
            ("If-None-Match: OTHER, *", "200: 012345678"),
            ("If-None-Match:", "200: 012345678"),
            ("If-None-Match: abc", "200: 012345678"),
            ("If-None-Match: w/TAG", "200: 012345678"),
            ("If-None-Match: \"abc", "200: 012345678"),
            ("If-None-Match: OTHERTAG", "200: 012345678"),
            ("If-Match: TAG", "200: 012345678"),
            ("If-Match: OTHER, TAG", "200: 012345678"),
            ("If-Match: *", "200: 012345678"),
            ("If-Match: W/TAG", "412"),
            ("If-Match: OTHER", "412"),
            ("If-Match: abc", "412"),
            ("If-Match:", "412"),
            // The order of section 13.2.2.
            ("If-Match: TAG\r\nIf-None-Match: TAG", "304"),
            ("If-Match: OTHER\r\nIf-None-Match: TAG", "412"),
            ("If-Match: OTHER\r\nRange: bytes=0-1", "412"),
            ("If-None-Match: TAG\r\nRange: bytes=0-1", "304"),
            ("If-None-Match: TAG\r\nRange: bytes=10-", "304"),
            ("If-None-Match: OTHER\r\nRange: bytes=0-1", "206, Content-Range: bytes 0-1/10: 01"),
            // Of a page no time is known.
            ("If-Modified-Since: Fri, 31 Dec 9999 23:59:59 GMT", "200: 012345678"),
            ("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT", "200: 012345678"),
        ],
    );
    check_fields(
        &mut site,
        "HEAD",
        &[("If-None-Match: TAG", "304"), ("If-Match: OTHER", "412"), ("If-Match: TAG", "200")],
    );
    // Section 13.2.1: conditions count only where the answer were a success without them.
    check(
        &mut site,
        &[
            ("GET /none HTTP/1.1\r\nHost: x\r\nIf-Match: *\r\n\r\n", "404"),
            ("GET /none HTTP/1.1\r\nHost: x\r\nIf-None-Match: *\r\n\r\n", "404"),
            ("POST /ten HTTP/1.1\r\nHost: x\r\nIf-None-Match: *\r\n\r\n", "405, Allow: GET, HEAD"),
            ("GET /ten HTTP/1.0\r\nIf-None-Match: TAG\r\n\r\n", "304, Connection: close"),
        ],
    );
}

/// Serves `/ten` with this time of its last change.
fn site_of_a_file(modified: SystemTime) -> (Site, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("ten", "012345678\n"), ("other", "876543210\n")] {
        fs::write(folder.path().join(name), text).unwrap();
        File::options().write(true).open(folder.path().join(name)).unwrap().set_modified(modified).unwrap();
    }
    (Site::new(&format!("root {}\n", folder.path().display())), folder)
}

#[test]
fn rfc_9110_section_13_conditions_by_dates() {
    let (mut site, _folder) = site_of_a_file(UNIX_EPOCH + Duration::from_millis(784_111_777_900));
    let modified = "Sun, 06 Nov 1994 08:49:37 GMT";
    let answer = site.ask_anew(site::get("/ten"));
    assert_eq!(field(&answer, "Last-Modified"), Some(modified));
    check_fields(
        &mut site,
        "GET",
        &[
            ("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT", "304"),
            ("If-Modified-Since: Sunday, 06-Nov-94 08:49:37 GMT", "304"),
            ("If-Modified-Since: Sun Nov  6 08:49:37 1994", "304"),
            ("If-Modified-Since: Sun, 06 Nov 1994 08:49:38 GMT", "304"),
            ("If-Modified-Since: Sun, 06 Nov 1994 08:49:36 GMT", "200: 012345678"),
            ("If-Modified-Since: Mon, 06 Nov 1994 08:49:37 GMT", "200: 012345678"),
            ("If-Modified-Since: 784111777", "200: 012345678"),
            ("If-Modified-Since: \u{e9}", "200: 012345678"),
            ("If-Modified-Since:", "200: 012345678"),
            (
                "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT",
                "200: 012345678",
            ),
            ("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT", "200: 012345678"),
            ("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:36 GMT", "412"),
            ("If-Unmodified-Since: yesterday", "200: 012345678"),
            // The order of section 13.2.2: a tag decides where there is one.
            ("If-None-Match: OTHER\r\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT", "200: 012345678"),
            ("If-None-Match: TAG\r\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:36 GMT", "304"),
            ("If-Match: TAG\r\nIf-Unmodified-Since: Sun, 06 Nov 1994 08:49:36 GMT", "200: 012345678"),
            ("If-Match: OTHER\r\nIf-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT", "412"),
            ("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:36 GMT\r\nIf-None-Match: TAG", "412"),
            // Section 13.1.5: a date is compared exactly.
            ("Range: bytes=0-1\r\nIf-Range: Sun, 06 Nov 1994 08:49:37 GMT", "206, Content-Range: bytes 0-1/10: 01"),
            ("Range: bytes=0-1\r\nIf-Range: Sun, 06 Nov 1994 08:49:38 GMT", "200: 012345678"),
            ("Range: bytes=0-1\r\nIf-Range: Sun, 06 Nov 1994 08:49:36 GMT", "200: 012345678"),
        ],
    );
    check_fields(&mut site, "HEAD", &[("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT", "304")]);
}

#[test]
fn rfc_9110_section_8_8_validators() {
    let mut site = Site::new(PAGES);
    let tag = |site: &mut Site, path: &str| field(&site.ask_anew(site::get(path)), "ETag").unwrap().to_owned();
    let ten = tag(&mut site, "/ten");
    assert!(ten.len() == 34 && ten.starts_with('"') && ten.ends_with('"'), "{ten}");
    assert_ne!(tag(&mut site, "/empty"), tag(&mut site, "/some"));
    assert_eq!(ten, tag(&mut Site::new(PAGES), "/ten"), "it is the same in each instance");
    // A page and a file of the same content have the same.
    let (mut files, folder) = site_of_a_file(UNIX_EPOCH);
    assert_eq!(ten, tag(&mut files, "/ten"));
    let answer = files.ask_anew(site::get("/ten"));
    assert_eq!(field(&answer, "Last-Modified"), None, "a node has no times of files");
    // A content that was never digested has no tag, rather than that of another.
    fs::write(folder.path().join("ten"), "changed\n").unwrap();
    fs::write(folder.path().join("new"), "new\n").unwrap();
    for path in ["/ten", "/new"] {
        let answer = files.ask_anew(site::get(path));
        assert_eq!((status(&answer), field(&answer, "ETag")), ("HTTP/1.1 200 OK", None), "{path}");
        assert!(field(&answer, "Last-Modified").is_some());
    }
    let answer = files.ask_anew(format!("GET /ten HTTP/1.1\r\nHost: x\r\nIf-None-Match: {ten}\r\n\r\n"));
    assert_eq!(body(&answer), "changed\n");
    // Section 8.8.2.1: no file was changed after its response. Section 8.8.2.2: such a date is no strong validator.
    let (mut files, _folder) = site_of_a_file(SystemTime::now() + Duration::from_secs(1_000_000));
    let answer = files.ask_anew(site::get("/ten"));
    let modified = field(&answer, "Last-Modified").unwrap();
    assert!(httpdate::parse_http_date(modified).unwrap() <= SystemTime::now(), "{modified}");
    let request = format!("GET /ten HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\r\nIf-Range: {modified}\r\n\r\n");
    assert_eq!(status(&files.ask_anew(request)), "HTTP/1.1 200 OK");
}

#[test]
fn rfc_9110_section_14_ranges() {
    let mut site = Site::new(PAGES);
    check_fields(
        &mut site,
        "GET",
        &[
            ("Range: bytes=0-3", "206, Content-Range: bytes 0-3/10: 0123"),
            ("Range: BYTES=0-0", "206, Content-Range: bytes 0-0/10: 0"),
            ("Range: bytes=5-", "206, Content-Range: bytes 5-9/10: 5678"),
            ("Range: bytes=8-100", "206, Content-Range: bytes 8-9/10: 8"),
            ("Range: bytes=0-", "206, Content-Range: bytes 0-9/10: 012345678"),
            ("Range: bytes=-3", "206, Content-Range: bytes 7-9/10: 78"),
            ("Range: bytes=-100", "206, Content-Range: bytes 0-9/10: 012345678"),
            ("Range: bytes=-99999999999999999999999", "206, Content-Range: bytes 0-9/10: 012345678"),
            ("Range: bytes=2-99999999999999999999999", "206, Content-Range: bytes 2-9/10: 2345678"),
            ("Range: bytes= , 1-2 ,", "206, Content-Range: bytes 1-2/10: 12"),
            ("Range: bytes=10-", "416, Content-Range: bytes */10"),
            ("Range: bytes=99999999999999999999999-", "416, Content-Range: bytes */10"),
            ("Range: bytes=-0", "416, Content-Range: bytes */10"),
            ("Range: bytes=10-,-0", "416, Content-Range: bytes */10"),
            ("Range: bytes=3-2", "416, Content-Range: bytes */10"),
            ("Range: bytes=", "416, Content-Range: bytes */10"),
            ("Range: bytes=,", "416, Content-Range: bytes */10"),
            ("Range: bytes=-", "416, Content-Range: bytes */10"),
            ("Range: bytes=a-b", "416, Content-Range: bytes */10"),
            ("Range: bytes=1-2-3", "416, Content-Range: bytes */10"),
            ("Range: bytes=+1-2", "416, Content-Range: bytes */10"),
            ("Range: bytes=1", "416, Content-Range: bytes */10"),
            ("Range: bytes=0-1,x", "416, Content-Range: bytes */10"),
            ("Range: lines=0-1", "200: 012345678"),
            ("Range: bytes", "200: 012345678"),
            ("Range: bytes 0-1", "200: 012345678"),
            ("Range: bytes=0-1\r\nRange: bytes=2-3", "200: 012345678"),
            // Several ranges get the whole, so that no answer is longer than the file.
            ("Range: bytes=0-1,4-5", "200: 012345678"),
            ("Range: bytes=0-,0-,0-,0-,0-", "200: 012345678"),
            ("Range: bytes=0-1,10-", "206, Content-Range: bytes 0-1/10: 01"),
            ("Range: bytes=0-1\r\nIf-Range: TAG", "206, Content-Range: bytes 0-1/10: 01"),
            ("Range: bytes=10-\r\nIf-Range: TAG", "416, Content-Range: bytes */10"),
            ("Range: bytes=0-1\r\nIf-Range: OTHER", "200: 012345678"),
            ("Range: bytes=10-\r\nIf-Range: OTHER", "200: 012345678"),
            ("Range: bytes=0-1\r\nIf-Range: W/TAG", "200: 012345678"),
            ("Range: bytes=0-1\r\nIf-Range: *", "200: 012345678"),
            ("Range: bytes=0-1\r\nIf-Range: TAG, TAG", "200: 012345678"),
            ("Range: bytes=0-1\r\nIf-Range: TAG\r\nIf-Range: TAG", "200: 012345678"),
            ("If-Range: OTHER", "200: 012345678"),
        ],
    );
    check_fields(&mut site, "HEAD", &[("Range: bytes=0-1", "200"), ("Range: bytes=10-", "200")]);
    check_fields(&mut site, "POST", &[("Range: bytes=0-1", "405, Allow: GET, HEAD")]);
    check(
        &mut site,
        &[
            ("GET /empty HTTP/1.1\r\nHost: x\r\nRange: bytes=0-\r\n\r\n", "416, Content-Range: bytes */0"),
            ("GET /empty HTTP/1.1\r\nHost: x\r\nRange: bytes=-5\r\n\r\n", "200: "),
            ("GET /none HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\r\n\r\n", "404"),
        ],
    );
    // A field full of ranges, as in attacks with many of them.
    let many = (0..1_500).map(|at| format!("{at}-")).collect::<Vec<_>>().join(",");
    let answer = site.ask_anew(format!("GET /some HTTP/1.1\r\nHost: x\r\nRange: bytes={many}\r\n\r\n"));
    assert_eq!((status(&answer), body(&answer).len()), ("HTTP/1.1 200 OK", 100_000));
    // Parts of a generated file and of a directory's are those of the whole.
    let whole = site.ask_anew(site::get("/some"));
    let (mut files, _folder) = site_of_a_file(SystemTime::now());
    for (site, path, whole) in [(&mut site, "/some", body(&whole)), (&mut files, "/ten", "012345678\n")] {
        for (first, last) in [(1, 3), (7, 9), (0, whole.len() - 1), (whole.len() / 2, whole.len() - 1)] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nRange: bytes={first}-{last}\r\n\r\n");
            let answer = site.ask_anew(request);
            assert_eq!((status(&answer), body(&answer)), ("HTTP/1.1 206 Partial Content", &whole[first..=last]));
        }
    }
}

#[test]
fn rfc_9110_section_15_4_5_not_modified_has_the_fields_of_the_whole_and_no_content() {
    let (mut site, _folder) = site_of_a_file(UNIX_EPOCH + Duration::from_secs(784_111_777));
    let whole = site.ask_anew(site::get("/ten"));
    let tag = field(&whole, "ETag").unwrap();
    let answer = site.ask_anew(format!("GET /ten HTTP/1.1\r\nHost: x\r\nIf-None-Match: {tag}\r\n\r\n"));
    let modified = "Sun, 06 Nov 1994 08:49:37 GMT";
    // The date is there as well: the helper takes it away from each answer.
    assert_eq!(answer, format!("HTTP/1.1 304 Not Modified\r\nETag: {tag}\r\nLast-Modified: {modified}\r\n\r\n"));
    let part = site.ask_anew("GET /ten HTTP/1.1\r\nHost: x\r\nRange: bytes=1-2\r\n\r\n");
    assert_eq!((field(&part, "ETag"), field(&part, "Last-Modified")), (Some(tag), Some(modified)));
    assert_eq!(field(&part, "Content-Type"), field(&whole, "Content-Type"));
}

#[test]
fn rfc_9110_section_6_6_1_every_answer_has_a_date() {
    let mut site = Site::new(PAGES);
    for (request, expected) in [
        (site::get("/"), "200"),
        (site::get("/none"), "404"),
        ("nonsense\r\n".to_owned(), "400"),
        ("BREW / HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), "501"),
        ("GET / HTTP/1.1\r\nHost: x\r\nIf-None-Match: *\r\n\r\n".to_owned(), "304"),
    ] {
        let client = site.connect();
        site.0.send(client, request.as_bytes());
        site.0.settle();
        let answer = String::from_utf8(site.0.received(client)).unwrap();
        assert!(status(&answer).contains(expected), "{answer}");
        let date = httpdate::parse_http_date(field(&answer, "Date").unwrap()).unwrap();
        let age = SystemTime::now().duration_since(date).unwrap();
        assert!(age < Duration::from_secs(3_600), "it is that of the machine: {age:?}");
        site.0.abort(client);
    }
}

#[test]
fn rfc_9112_sections_2_to_7_messages() {
    let mut site = Site::new(PAGES);
    check(
        &mut site,
        &[
            ("\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", "200: front"),
            ("GET / HTTP/1.1\nHost: x\n\n", "200: front"),
            ("GET / HTTP/1.1\r\n\r\n", "400, Connection: close"),
            ("GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", "400, Connection: close"),
            ("GET / HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n", "400, Connection: close"),
            ("GET / HTTP/1.1\r\nHost : x\r\n\r\n", "400, Connection: close"),
            ("GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n", "400, Connection: close"),
            ("GET / HTTP/1.1\r\n X: y\r\nHost: x\r\n\r\n", "400, Connection: close"),
            ("GET / HTTP/2.0\r\nHost: x\r\n\r\n", "505, Connection: close"),
            ("GET / HTTP/1.2\r\nHost: x\r\n\r\n", "200: front"),
            ("GET / HTTP/1.0\r\n\r\n", "200, Connection: close: front"),
            ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "200, Connection: keep-alive: front"),
            ("GET / HTTP/1.1\r\nHost: x\r\nConnection: a, Close\r\n\r\n", "200, Connection: close: front"),
            (
                "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                "400, Connection: close",
            ),
            ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "400, Connection: close"),
            ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400, Connection: close"),
            ("GET http://y/ten HTTP/1.1\r\nHost: x\r\n\r\n", "200: 012345678"),
            ("GET /./x/..//ten HTTP/1.1\r\nHost: x\r\n\r\n", "200: 012345678"),
            ("GET /%74%65n HTTP/1.1\r\nHost: x\r\n\r\n", "200: 012345678"),
            ("GET /../ten HTTP/1.1\r\nHost: x\r\n\r\n", "400, Connection: close"),
            ("GET * HTTP/1.1\r\nHost: x\r\n\r\n", "400, Connection: close"),
            ("GET ten HTTP/1.1\r\nHost: x\r\n\r\n", "400, Connection: close"),
        ],
    );
    // What follows a request is the next one.
    let answer = site.ask_anew("GET / HTTP/1.1\r\nHost: x\r\n\r\nrubbish\r\n");
    let (first, second) = answer.split_once("front\n").unwrap();
    assert_eq!((status(first), status(second)), ("HTTP/1.1 200 OK", "HTTP/1.1 400 Bad Request"));
}
