use super::*;

const S: u64 = 1_000_000;

struct Files {
    directory: tempfile::TempDir,
    next: u64,
}

impl Files {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("work")).unwrap();
        Files { directory, next: 1 }
    }

    /// A file with one grant for each allocation of `to`, and `more` members.
    fn write(&mut self, to: &[&str], more: &str) {
        let number = self.next;
        self.next += 1;
        let each = |(k, _): (usize, _)| {
            let (first, grant) = (k * 10, 100 * number + k as u64);
            format!(
                r#"{{"grant":{grant},"job":{},"first":{first},"count":10,"chunk_max":null}}"#,
                k + 1
            )
        };
        let share = |(k, name): (usize, &&str)| format!(r#"{{"allocation":"{name}","grants":[{k}]}}"#);
        let job = |(k, _): (usize, _)| {
            format!(
                r#"{{"job":{},"program":1,"argv":[],"env":{{}},"params":"{{}}","seed_base":0,"events":100,"inputs":[]}}"#,
                k + 1
            )
        };
        let program = r#"{"program":1,"app":"a","version":"1","executable":"/bin/true","mode":"command","env":{},
            "cores":1,"memory_mb":1,"devices":{},"scratch_mb":1,"event_s":1.0,"chunk_max":1,"range_s":1.0,
            "timeout_s":null,"looping_s":null,"ready_timeout_s":1.0,"log_bytes_max":1,"outputs":[],
            "stdout_output":false,"batch_commands":false,"pass_env":[],
            "images":[],"files":[],"wrap":[],"setup":null,"trace_first":false,"trace_every":0,"start_ops":{},"start_bytes":{}}"#;
        let list = |texts: Vec<String>| texts.join(",");
        let text = format!(
            r#"{{"format":1,"number":{number},"programs":[{program}],"jobs":[{}],"grants":[{}],"shares":[{}]{more}}}"#,
            list(to.iter().enumerate().map(job).collect()),
            list(to.iter().enumerate().map(each).collect()),
            list(to.iter().enumerate().map(share).collect()),
        );
        let path = self.directory.path().join(format!("work/{number:06}.json"));
        std::fs::write(path, text).unwrap();
    }

    fn open(&self, allocation: &str, first: Option<u64>) -> Mailbox {
        let settings = Settings {
            top_up_s: 10.0,
            dead_after_s: 300.0,
            ..Settings::default()
        };
        Mailbox::open(self.directory.path(), allocation, &settings, first, 0).unwrap()
    }
}

const NOTHING: &str = r#","cancel_jobs":[],"ended":[],"ends":[],"leave":[],"drain":false,"close":false"#;

fn given(events: &[LinkEvent]) -> Vec<u64> {
    let work = |event: &LinkEvent| match event {
        LinkEvent::Message(LeadMessage::Work(work)) => {
            assert_eq!(work.programs.len(), 1);
            assert_eq!(work.jobs.len(), 1);
            Some(work.grants[0].grant)
        }
        _ => None,
    };
    events.iter().filter_map(work).collect()
}

#[test]
fn an_allocation_takes_its_own_share_with_what_it_needs() {
    let mut files = Files::new();
    files.write(&["a.1", "a.2"], NOTHING);
    let mut mailbox = files.open("a.2", Some(1));
    assert!(mailbox.is_behind(0));
    assert_eq!(given(&mailbox.advance(0)), [101]);
    assert!(!mailbox.is_behind(0));
    files.write(&["a.2", "a.1"], NOTHING);
    assert!(mailbox.advance(S).is_empty(), "not before it is due");
    assert_eq!(given(&mailbox.advance(11 * S)), [200]);
    assert!(mailbox.due_us() > 11 * S && mailbox.due_us() <= 21 * S);
}

#[test]
fn a_late_start_reads_its_first_file_and_the_last_one_only() {
    let mut files = Files::new();
    for _ in 0..50 {
        files.write(&["a.1"], NOTHING);
    }
    let mut mailbox = files.open("a.1", Some(7));
    assert_eq!(given(&mailbox.advance(0)), [700, 5000]);
}

#[test]
fn a_later_start_takes_nothing_that_was_there_before_it() {
    let mut files = Files::new();
    files.write(&["a.1"], NOTHING);
    files.write(&["a.1"], &NOTHING.replace(r#""drain":false"#, r#""drain":true"#));
    let mut mailbox = files.open("a.1", None);
    let events = mailbox.advance(0);
    assert!(given(&events).is_empty());
    assert!(
        matches!(&events[..], [LinkEvent::Message(LeadMessage::Drain(_))]),
        "{events:?}"
    );
}

#[test]
fn orders_come_in_the_order_of_the_files_and_only_to_whom_they_concern() {
    let mut files = Files::new();
    files.write(&["a.1"], NOTHING);
    let orders = r#","cancel_jobs":[9],"ended":["a.1"],"ends":[{"allocation":"a.1","at_us":5},
        {"allocation":"b","at_us":6}],"leave":["b"],"drain":false,"close":true"#;
    files.write(&["a.1"], orders);
    let mut mailbox = files.open("a.1", Some(1));
    let told: Vec<String> = mailbox
        .advance(0)
        .iter()
        .map(|event| match event {
            LinkEvent::Message(LeadMessage::Work(work)) => format!("work {}", work.grants[0].grant),
            LinkEvent::Message(LeadMessage::Cancel(cancel)) => format!("cancel {:?}", cancel.jobs),
            LinkEvent::Message(LeadMessage::Deadline(deadline)) => format!("end {}", deadline.at_us),
            LinkEvent::Revoked => String::from("revoked"),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(told, ["work 100", "cancel [9]", "revoked", "end 5", "work 200"]);
    assert!(mailbox.closed);
    let events = files.open("b", Some(2)).advance(0);
    let leaves = |event: &LinkEvent| matches!(event, LinkEvent::Message(LeadMessage::Drain(_)));
    assert!(events.iter().any(leaves), "{events:?}");
}

#[test]
fn a_damaged_file_is_read_again_and_holds_nothing_else_up() {
    let mut files = Files::new();
    let path = files.directory.path().join("work/000001.json");
    std::fs::write(&path, "{").unwrap();
    let mut mailbox = files.open("a.1", Some(1));
    assert!(mailbox.advance(0).is_empty());
    assert!(!mailbox.is_behind(0));
    files.write(&["a.1"], NOTHING);
    assert_eq!(given(&mailbox.advance(30 * S)), [100]);
}

#[test]
fn a_stop_file_and_a_silent_agent_are_noticed_at_a_look() {
    let files = Files::new();
    let mut mailbox = files.open("a.1", Some(1));
    assert!(mailbox.advance(0).is_empty());
    std::fs::write(files.directory.path().join("STOP"), "").unwrap();
    let events = mailbox.advance(11 * S);
    assert!(matches!(&events[..], [LinkEvent::Message(LeadMessage::Drain(drain))] if drain.reason == "stop"));
    assert!(mailbox.agent_lives());
    let mut now = 11 * S;
    while mailbox.agent_lives() {
        now = mailbox.due_us();
        mailbox.advance(now);
        assert!(now < 400 * S);
    }
    assert!(now > 250 * S, "{now}");
}
