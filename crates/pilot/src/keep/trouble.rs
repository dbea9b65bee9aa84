//! How long storage has been in trouble, and when it is tried again. Pure.

/// The first pause before another try, and the longest.
const PAUSE_US: u64 = 500_000;
const PAUSE_US_MAX: u64 = 15_000_000;
/// Trouble that comes back so soon, with nothing made safe in between, is the same one.
const SAME_US: u64 = 120_000_000;

#[derive(Debug)]
struct Now {
    text: String,
    since_us: u64,
    retry_us: u64,
    pause_us: u64,
    /// Something was written since the last failure: if it becomes safe, the trouble is over.
    tried: bool,
}

/// From the first failure until something is safe again.
#[derive(Debug)]
pub(super) struct Trouble {
    patience_us: u64,
    now: Option<Now>,
    /// Since when and until when there was one of which it is not known that it is over.
    before: Option<(u64, u64)>,
    news: Option<&'static str>,
}

impl Trouble {
    pub fn new(patience_us: u64) -> Self {
        Trouble {
            patience_us,
            now: None,
            before: None,
            news: None,
        }
    }

    /// A call has failed, or is not answered.
    pub fn failed(&mut self, text: String, now_us: u64) {
        let again = self
            .before
            .take()
            .filter(|(_, until_us)| now_us < until_us + SAME_US);
        match &mut self.now {
            Some(now) if now_us < now.retry_us => now.text = text, // of the same try
            Some(now) => {
                now.pause_us = (now.pause_us * 2).min(PAUSE_US_MAX);
                (now.retry_us, now.text, now.tried) = (now_us + now.pause_us, text, false);
            }
            None => {
                self.news = Some("failed");
                self.now = Some(Now {
                    text,
                    since_us: again.map_or(now_us, |(since_us, _)| since_us),
                    retry_us: now_us + PAUSE_US,
                    pause_us: PAUSE_US,
                    tried: false,
                });
            }
        }
    }

    /// Something was written.
    pub fn tried(&mut self) {
        if let Some(now) = &mut self.now {
            now.tried = true;
        }
    }

    /// Everything that was written is safe: the trouble is over if that is anything.
    pub fn ended_well(&mut self) {
        if self.now.as_ref().is_some_and(|now| now.tried) {
            self.now = None;
            self.news = Some("works");
        }
        if self.now.is_none() {
            self.before = None;
        }
    }

    /// Whether nothing should be tried yet. Where there is nothing to try with (`has_some`), work may begin again.
    pub fn rests(&mut self, has_some: bool, now_us: u64) -> bool {
        let Some(now) = &self.now else {
            return false;
        };
        if now_us < now.retry_us {
            return true;
        }
        if !has_some && !now.tried {
            self.before = Some((now.since_us, now_us));
            self.now = None;
        }
        false
    }

    pub fn is_on(&self) -> bool {
        self.now.is_some()
    }

    pub fn text(&self) -> Option<&str> {
        self.now.as_ref().map(|now| &*now.text)
    }

    pub fn retry_us(&self) -> u64 {
        self.now.as_ref().map_or(0, |now| now.retry_us)
    }

    pub fn hopeless_us(&self) -> Option<u64> {
        self.now.as_ref().map(|now| now.since_us + self.patience_us)
    }

    pub fn is_hopeless(&self, now_us: u64) -> bool {
        self.hopeless_us().is_some_and(|at_us| now_us >= at_us)
    }

    /// `failed` or `works`, once.
    pub fn news(&mut self) -> Option<&'static str> {
        self.news.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE_US: u64 = 300_000_000;

    #[test]
    fn it_is_tried_later_and_later_until_patience_ends() {
        let mut trouble = Trouble::new(PATIENCE_US);
        let (mut now_us, mut tries) = (0, 0);
        while !trouble.is_hopeless(now_us) {
            trouble.failed(String::from("EIO"), now_us);
            assert!(trouble.rests(true, trouble.retry_us() - 1) && !trouble.rests(true, trouble.retry_us()));
            now_us = trouble.retry_us();
            tries += 1;
        }
        assert!((20..40).contains(&tries), "{tries} tries");
        assert!(now_us < PATIENCE_US + PAUSE_US_MAX);
        assert_eq!((trouble.news(), trouble.news()), (Some("failed"), None));
    }

    #[test]
    fn it_is_over_when_something_that_was_written_is_safe() {
        let mut trouble = Trouble::new(PATIENCE_US);
        trouble.failed(String::from("EIO"), 5);
        trouble.ended_well(); // of nothing
        assert!(trouble.is_on());
        trouble.tried();
        trouble.ended_well();
        assert!(!trouble.is_on() && trouble.text().is_none());
        assert_eq!(trouble.news(), Some("works"));
    }

    #[test]
    fn without_anything_to_try_with_work_begins_again_and_the_same_trouble_goes_on() {
        let mut trouble = Trouble::new(PATIENCE_US);
        trouble.failed(String::from("EIO"), 5);
        assert!(!trouble.rests(false, trouble.retry_us()) && !trouble.is_on());
        trouble.failed(String::from("EIO"), 7_000_000);
        assert_eq!(trouble.hopeless_us(), Some(5 + PATIENCE_US));
        let mut later = Trouble::new(PATIENCE_US);
        later.failed(String::from("EIO"), 5);
        assert!(!later.rests(false, later.retry_us()));
        later.failed(String::from("EIO"), SAME_US + 9_000_000);
        assert_eq!(later.hopeless_us(), Some(SAME_US + 9_000_000 + PATIENCE_US));
    }
}
