//! `tidemill-node lead`: hands the fleet's work to the pilots that ask, and keeps its journal.

mod handout;
mod intervals;
mod ledger;
mod pace;
mod record;
mod work;
