#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)] // a program for measurements

//! Pilots that only ask and record, by the real protocol, against a real lead process.
//!
//!     cargo run --release --example load -- BINARY PILOTS RECORDS [RATE]
//!
//! Starts `BINARY lead` on a fleet in a temporary directory ($TMPDIR), connects PILOTS pilots from one thread per 256,
//! sends RECORDS records in all (RATE per second at most), waits until all are acknowledged, and prints one JSON object:
//! records per second from first record to last acknowledgement, and the lead's CPU share.

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{BufRead, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{done, grant, job, numbered, program, Fleet, Pilot};
use tidemill_sys::fd::{poll, Poll, READABLE, WRITABLE};
use tidemill_wire::{frame, LeadMessage, LineBuffer};

const PILOTS_PER_THREAD: usize = 256;
/// Records that a pilot sends at once and at most has unacknowledged.
const BURST: u64 = 64;
const WINDOW: u64 = 20_000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |k: usize| args.get(k).and_then(|text| text.parse::<u64>().ok());
    let (Some(binary), Some(pilots), Some(records)) = (args.first(), number(1), number(2)) else {
        eprintln!("usage: load BINARY PILOTS RECORDS [RATE]");
        std::process::exit(2);
    };
    let rate = number(3);
    let mut fleet = Fleet::with(|settings| (settings.record_flush_ms, settings.queue_s) = (100, 5.0));
    fleet.work(|work| {
        work.programs.push(program(1, 1.0));
        work.jobs.push(job(1, 1, records));
        work.grants.push(grant(1, 1, 0, records));
    });
    let mut lead = Command::new(binary)
        .args(["lead", "--fleet"])
        .arg(fleet.path())
        .stderr(Stdio::null())
        .spawn()
        .expect("start the lead");
    let address = await_address(&fleet);
    let pid = lead.id();
    let each = records / pilots;
    let ids: Vec<u64> = (0..pilots).collect();
    let joining = (cpu_s(pid), Instant::now());
    let joined: Vec<Vec<Pilot>> = ids
        .chunks(PILOTS_PER_THREAD)
        .map(|ids| {
            ids.iter()
                .map(|k| Pilot::join_saying(address, &format!("a{k}.r0.i1"), (0, 0)))
                .collect()
        })
        .collect();
    let (join_cpu_s, join_s) = (cpu_s(pid) - joining.0, joining.1.elapsed().as_secs_f64());
    let (cpu_before, began) = (cpu_s(pid), Instant::now());
    let threads: Vec<_> = joined
        .into_iter()
        .map(|pilots| {
            let share = rate.map(|rate| rate as f64 * pilots.len() as f64 / ids.len() as f64);
            std::thread::spawn(move || drive(pilots, each, share))
        })
        .collect();
    for thread in threads {
        thread.join().expect("a thread of pilots");
    }
    let wall_s = began.elapsed().as_secs_f64();
    let cpu = cpu_s(pid) - cpu_before;
    println!(
        "{{\"pilots\": {pilots}, \"join_s\": {join_s:.3}, \"join_cpu_s\": {join_cpu_s:.3}, \"records\": {}, \"wall_s\": {wall_s:.3}, \"records_per_s\": {:.0}, \"lead_cpu_share\": {:.3}, \"lead_rss_mb\": {:.1}}}",
        each * pilots,
        (each * pilots) as f64 / wall_s,
        cpu / wall_s,
        rss_mb(pid),
    );
    end(&mut lead);
}

struct Side {
    pilot: Pilot,
    lines: LineBuffer,
    out: Vec<u8>,
    sent: usize,
    acked: u64,
}

/// Send `each` records of every pilot and wait for their acknowledgement.
fn drive(pilots: Vec<Pilot>, each: u64, rate: Option<f64>) {
    let began = Instant::now();
    let mut sides: Vec<Side> = pilots
        .into_iter()
        .map(|pilot| {
            pilot.reader.get_ref().set_nonblocking(true).expect("nonblocking");
            Side {
                pilot,
                lines: LineBuffer::new(1 << 20),
                out: Vec::new(),
                sent: 0,
                acked: 0,
            }
        })
        .collect();
    let count = sides.len() as f64;
    while sides.iter().any(|side| side.acked < each) {
        let allowed = rate.map_or(u64::MAX, |rate| {
            (rate * began.elapsed().as_secs_f64() / count) as u64
        });
        let mut fds = Vec::new();
        for (k, side) in sides.iter_mut().enumerate() {
            // with a rate, pilots send one after the other as time goes by
            let allowed = allowed.saturating_add(u64::from(rate.is_some() && k % 2 == 0));
            fill(side, each.min(allowed));
            let events = if side.sent < side.out.len() {
                READABLE | WRITABLE
            } else {
                READABLE
            };
            fds.push(Poll::new(side.pilot.reader.get_ref().as_fd(), events));
        }
        poll(&mut fds, Some(if rate.is_some() { 5_000 } else { 100_000 })).expect("poll");
        let ready: Vec<(bool, bool)> = fds.iter().map(|fd| (fd.readable(), fd.writable())).collect();
        for (side, (readable, writable)) in sides.iter_mut().zip(ready) {
            if writable && side.sent < side.out.len() {
                if let Ok(count) = side.pilot.reader.get_mut().write(&side.out[side.sent..]) {
                    side.sent += count;
                }
            }
            if readable {
                take_acks(side);
            }
        }
        if rate.is_some() {
            poll(&mut [], Some(5_000)).expect("poll");
        }
    }
}

fn fill(side: &mut Side, until: u64) {
    if side.sent < side.out.len() {
        return;
    }
    side.out.clear();
    side.sent = 0;
    let last = (side.pilot.next - 1 + BURST).min(until).min(side.acked + WINDOW);
    while side.pilot.next <= last {
        let number = side.pilot.next;
        let record = numbered(done(&grant(1, 1, number - 1, 1), 1000), &side.pilot.id, number);
        frame::encode(&record, &mut side.out).expect("a record");
        side.pilot.next += 1;
    }
}

fn take_acks(side: &mut Side) {
    side.lines.fill(side.pilot.reader.get_mut()).expect("read");
    while let Some(line) = side.lines.next_line() {
        if let Ok(LeadMessage::Ack(ack)) = serde_json::from_slice(line) {
            side.acked = side.acked.max(ack.acked);
        }
    }
}

fn await_address(fleet: &Fleet) -> std::net::SocketAddr {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Ok(text) = std::fs::read(fleet.path().join("lead.json")) {
            let told: tidemill_wire::LeadAddress = serde_json::from_slice(&text).expect("lead.json");
            return format!("{}:{}", told.host, told.port)
                .parse()
                .expect("an address");
        }
        assert!(Instant::now() < deadline, "the lead does not start");
        poll(&mut [], Some(10_000)).expect("poll");
    }
}

/// User and system time of a process: proc(5), fields 14 and 15 of /proc/PID/stat, 100 ticks per second.
fn cpu_s(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the lead lives");
    let fields: Vec<&str> = text
        .rsplit(')')
        .next()
        .expect("fields")
        .split_whitespace()
        .collect();
    (fields[11].parse::<f64>().expect("utime") + fields[12].parse::<f64>().expect("stime")) / 100.0
}

fn rss_mb(pid: u32) -> f64 {
    let mut text = String::new();
    let _ = std::fs::File::open(format!("/proc/{pid}/status"))
        .and_then(|mut file| file.read_to_string(&mut text));
    let kb = text
        .as_bytes()
        .lines()
        .map_while(Result::ok)
        .find(|line| line.starts_with("VmRSS"));
    kb.and_then(|line| {
        line.split_whitespace()
            .nth(1)
            .and_then(|kb| kb.parse::<f64>().ok())
    })
    .unwrap_or(0.0)
        / 1024.0
}

fn end(lead: &mut Child) {
    let _ = lead.kill();
    let _ = lead.wait();
}
