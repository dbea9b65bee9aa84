//! What is on disk: the lead's own journal, which is fsynced before anything is acknowledged, and the journals of
//! others, which are read. Knows no sockets.

pub mod commit;
pub mod replay;
