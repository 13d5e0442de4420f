//! Formats an error and its causes as one sentence.

use std::error::Error;

/// Returns the error's message, followed by the message of each cause that it does not contain already. Some errors
/// include their cause in their message, others leave that to the cause.
#[must_use]
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut sentence = error.to_string();
    let mut cause = error.source();
    while let Some(found) = cause {
        let words = found.to_string();
        if !sentence.contains(&words) {
            sentence.push_str(": ");
            sentence.push_str(&words);
        }
        cause = found.source();
    }
    sentence
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Problem {
        #[error("the file is bad")]
        Plain(#[source] io::Error),
        #[error("the file is bad: {0}")]
        Said(#[source] io::Error),
        #[error("the file is bad ({0}), take another")]
        Within(#[source] Box<Problem>),
    }

    #[test]
    fn each_cause_appears_once() {
        let cause = || io::Error::from_raw_os_error(2);
        let words = "No such file or directory (os error 2)";
        assert_eq!(with_causes(&cause()), words);
        for problem in [Problem::Plain(cause()), Problem::Said(cause())] {
            assert_eq!(with_causes(&problem), format!("the file is bad: {words}"));
        }
        let within = Problem::Within(Box::new(Problem::Said(cause())));
        assert_eq!(with_causes(&within), format!("the file is bad (the file is bad: {words}), take another"));
        let within = Problem::Within(Box::new(Problem::Plain(cause())));
        assert_eq!(with_causes(&within), format!("the file is bad (the file is bad), take another: {words}"));
    }
}
