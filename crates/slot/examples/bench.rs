//! `bench SLOTS EVENTS command|range CHUNK_MAX PROGRAM [ARG...]`: payloads (or events) per second through slots.
//! With `PIN` in the environment slots are pinned; with `IMAGE=ROOT:AREA[:AREA...]` the tree ROOT lies over the areas.

#[path = "../tests/slots/bench.rs"]
mod payloads;

use payloads::{bench, Bench};
use tidemill_slot::SlotImage;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut next = || {
        args.next()
            .ok_or("usage: bench SLOTS EVENTS command|range CHUNK_MAX PROGRAM [ARG...]")
    };
    let (slots, events, mode, chunk_max) = (next()?.parse()?, next()?.parse()?, next()?, next()?.parse()?);
    let argv = args.collect();
    let pin = std::env::var_os("PIN").is_some();
    let image = std::env::var("IMAGE").ok();
    let images = image.iter().filter_map(|image| {
        let mut parts = image.split(':').map(str::to_owned);
        Some(SlotImage {
            root: parts.next()?.into(),
            areas: parts.collect(),
        })
    });
    let images = images.collect();
    let outcome = bench(&Bench {
        slots,
        events,
        argv,
        mode,
        chunk_max,
        pin,
        images,
    })?;
    eprintln!("{outcome:?}");
    Ok(())
}
