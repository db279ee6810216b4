//! `lossy-disk`: serves an image as a disk that forgets what was not flushed when its client is gone.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use clap::Parser;
use lossy_disk::{Choice, Server};

#[derive(Debug, Parser)]
#[command(about = "Serve an image by NBD as a disk that forgets what was not flushed when its client is gone")]
struct Arguments {
    /// The image, which keeps what was flushed
    image: PathBuf,
    /// The Unix socket to make
    socket: PathBuf,
    /// Which sectors that were not flushed survive: none, all or random:SEED
    #[arg(long, default_value = "none", value_parser = choice)]
    survivors: Choice,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let _server = Server::start(&arguments.image, &arguments.socket, arguments.survivors)?;
    println!("listening on {}", arguments.socket.display());
    loop {
        std::thread::park();
    }
}

fn choice(text: &str) -> Result<Choice, String> {
    match (text, text.strip_prefix("random:").map(str::parse)) {
        ("none", _) => Ok(Choice::None),
        ("all", _) => Ok(Choice::All),
        (_, Some(Ok(seed))) => Ok(Choice::Random(seed)),
        _ => Err("expected none, all or random:SEED".to_owned()),
    }
}
