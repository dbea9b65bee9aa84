//! `bench SLOTS EVENTS command|range CHUNK_MAX PROGRAM [ARG...]`: payloads (or events) per second through slots.

use tidemill_slot::{bench, Bench};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut next = || {
        args.next()
            .ok_or("usage: bench SLOTS EVENTS command|range CHUNK_MAX PROGRAM [ARG...]")
    };
    let (slots, events, mode, chunk_max) = (next()?.parse()?, next()?.parse()?, next()?, next()?.parse()?);
    let argv = args.collect();
    let pin = std::env::var_os("PIN").is_some();
    let outcome = bench(&Bench {
        slots,
        events,
        argv,
        mode,
        chunk_max,
        pin,
    })?;
    eprintln!("{outcome:?}");
    Ok(())
}
