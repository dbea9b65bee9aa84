//! Pilots that have proved who they are say anything, and strangers too: the lead drops them and serves the others.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use support::*;
use tidemill_fuzz::hunt;
use tidemill_wire::frame;

#[test]
fn a_stranger_says_anything_and_a_pilot_is_served_all_the_same() {
    let mut fleet = Fleet::new();
    fleet.one_job(100_000, 0.01);
    let lead = fleet.lead();
    let mut turn = 0;
    hunt("pilot-messages", |bytes| {
        let mut stream = TcpStream::connect(lead.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        turn += 1;
        served(&lead, turn);
    });
}

#[test]
fn a_pilot_says_anything_and_another_is_served_all_the_same() {
    let mut fleet = Fleet::new();
    fleet.one_job(100_000, 0.01);
    let lead = fleet.lead();
    let mut turn = 0;
    hunt("pilot-messages", |bytes| {
        turn += 1;
        let mut pilot = lead.pilot(&format!("bad{turn}.r0.i1"));
        pilot.ask(1);
        pilot.send_raw(bytes);
        end(pilot);
        served(&lead, turn);
    });
}

#[test]
fn a_pilot_records_anything_and_another_is_served_all_the_same() {
    let mut fleet = Fleet::new();
    fleet.one_job(100_000, 0.01);
    let lead = fleet.lead();
    let mut turn = 0;
    hunt("records", |bytes| {
        turn += 1;
        let mut pilot = lead.pilot(&format!("bad{turn}.r0.i1"));
        pilot.ask(1);
        for (number, line) in bytes.split(|&byte| byte == b'\n').take(50).enumerate() {
            let mut framed = Vec::new();
            let id = format!("\"p\":\"bad{turn}.r0.i1\",\"s\":{}", number + 1);
            let text = String::from_utf8_lossy(line).replacen("\"p\":\"a.r0.i1\",\"s\":1", &id, 1);
            frame::encode_json(text.as_bytes(), &mut framed);
            pilot.send_raw(&framed);
        }
        end(pilot);
        served(&lead, turn);
    });
}

/// Says no more, and reads until the lead has closed too.
fn end(mut pilot: Pilot) {
    let stream = pilot.reader.get_mut();
    let _ = stream.shutdown(Shutdown::Write);
    let _ = pilot.reader.read_to_end(&mut Vec::new());
}

/// An honest pilot gets an answer, now and then.
fn served(lead: &Running, turn: u64) {
    if turn % 20 == 0 {
        let mut pilot = lead.pilot(&format!("good{turn}.r0.i1"));
        pilot.ask(1);
        pilot.work();
    }
}
