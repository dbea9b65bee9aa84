//! `tidemill-node floor N WORKERS PROGRAM`: what the kernel can do at most, for the benchmark: WORKERS processes, each a
//! loop of posix_spawn and wait, N programs in all. Prints programs per second.

use std::ffi::OsString;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

pub fn run(args: impl Iterator<Item = OsString>) -> i32 {
    let args: Vec<OsString> = args.collect();
    let number = |text: &OsString| {
        text.to_str()
            .and_then(|text| text.parse::<u64>().ok())
            .filter(|&n| n > 0)
    };
    let [count, workers, program] = &args[..] else {
        return usage();
    };
    let (Some(count), Some(workers)) = (number(count), number(workers)) else {
        return usage();
    };
    match measure(count, workers, program) {
        Ok(rate) => {
            let _ = writeln!(std::io::stdout(), "{rate:.1}"); // a closed pipe is the reader's choice
            0
        }
        Err(error) => {
            tidemill_wire::log::plain(&format!(
                "tidemill-node floor: {}: {error}\n",
                program.to_string_lossy()
            ));
            3
        }
    }
}

fn measure(count: u64, workers: u64, program: &OsString) -> std::io::Result<f64> {
    if workers == 1 {
        return one_loop(count, program);
    }
    let began = Instant::now();
    let own = std::env::current_exe()?;
    let share = |k: u64| count / workers + u64::from(k < count % workers);
    let children: Vec<(u64, Child)> = (0..workers)
        .map(|k| {
            let mut command = Command::new(&own);
            command
                .args(["floor", &share(k).max(1).to_string(), "1"])
                .arg(program)
                .stdout(Stdio::null());
            Ok((share(k).max(1), command.spawn()?))
        })
        .collect::<std::io::Result<_>>()?;
    let mut done = 0;
    for (share, mut child) in children {
        if !child.wait()?.success() {
            return Err(std::io::Error::other("a worker failed"));
        }
        done += share;
    }
    Ok(done as f64 / began.elapsed().as_secs_f64())
}

fn one_loop(count: u64, program: &OsString) -> std::io::Result<f64> {
    let began = Instant::now();
    let mut command = Command::new(program);
    for _ in 0..count {
        if !command.status()?.success() {
            return Err(std::io::Error::other("the program failed"));
        }
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

fn usage() -> i32 {
    tidemill_wire::log::plain("tidemill-node floor: expected N WORKERS PROGRAM, both numbers above 0\n");
    2
}
