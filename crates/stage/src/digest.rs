//! The digest of a file that comes in blocks, worked out beside the transfer.

use std::sync::mpsc::{channel, sync_channel, Receiver, SyncSender};
use std::thread::JoinHandle;

use sha2::{Digest as _, Sha256};

use tidemill_wire::hex;

/// Blocks that wait to be digested: more only cost memory.
const WAITING_MAX: usize = 2;

#[derive(Debug)]
pub struct Digest {
    blocks: SyncSender<Vec<u8>>,
    used: Receiver<Vec<u8>>,
    thread: JoinHandle<String>,
}

impl Digest {
    pub fn start() -> Self {
        let (blocks, waiting) = sync_channel::<Vec<u8>>(WAITING_MAX);
        let (back, used) = channel();
        let thread = std::thread::spawn(move || {
            let mut hasher = Sha256::new();
            while let Ok(block) = waiting.recv() {
                hasher.update(&block);
                let _ = back.send(block); // where the receiver is gone, the block is freed
            }
            hex::text(&hasher.finalize())
        });
        Digest { blocks, used, thread }
    }

    /// Add the next block; a buffer to be filled again.
    pub fn add(&self, block: Vec<u8>) -> Vec<u8> {
        let _ = self.blocks.send(block); // the thread ends only after this sender
        self.used.try_recv().unwrap_or_default()
    }

    pub fn finish(self) -> String {
        drop(self.blocks);
        self.thread.join().unwrap_or_default()
    }
}
