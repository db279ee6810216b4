//! The server: one client at a time, the power cut when it is gone.

use std::{
    io,
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use pmof_locks::{Condvar, Mutex, MutexGuard};

use crate::{
    disk::{Choice, Cut, CutBefore, Disk},
    protocol,
};

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The image cannot be opened.
    #[error("opening the image {}: {source}", path.display())]
    Image {
        /// The image.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The socket cannot be made.
    #[error("listening on {}: {source}; a socket's path has at most 107 bytes and must be free", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The survivors of a cut cannot be written.
    #[error("writing what survived to the image: {0}")]
    Survivors(io::Error),
}

/// A disk on a socket, served by a thread of its own. Dropping it cuts its power and removes the socket.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    listener: Arc<UnixListener>,
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    choice: Choice,
}

#[derive(Debug)]
struct State {
    disk: Disk,
    client: Option<UnixStream>,
    /// Nobody waits any more for an answer of a disk that is off.
    released: bool,
    stopped: bool,
    cuts: Vec<io::Result<Cut>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Server {
    /// Serves the image on a Unix socket. Whenever a client is gone, the disk loses power, with these survivors.
    pub fn start(image: &Path, socket: &Path, choice: Choice) -> Result<Server, ServerError> {
        let disk = Disk::open(image).map_err(|source| ServerError::Image { path: image.to_owned(), source })?;
        let listener =
            UnixListener::bind(socket).map_err(|source| ServerError::Listen { path: socket.to_owned(), source })?;
        let state = State { disk, client: None, released: false, stopped: false, cuts: Vec::new() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), choice });
        let listener = Arc::new(listener);
        let thread = thread::spawn({
            let (listener, shared) = (Arc::clone(&listener), Arc::clone(&shared));
            move || serve(&listener, &shared)
        });
        Ok(Server { shared, listener, socket: socket.to_owned(), thread: Some(thread) })
    }

    /// Cuts the power before that request: it is never answered, nor is any later one. The caller that waits for that
    /// kills the machine.
    pub fn cut_before(&self, request: CutBefore) {
        self.shared.lock().disk.cut_before(request);
    }

    /// Whether the power has gone by itself, or does within the time.
    pub fn is_off(&self, timeout: Duration) -> bool {
        let mut state = self.shared.lock();
        let _ = self.shared.changed.wait_while_for(&mut state, |state| !state.disk.is_off(), timeout);
        state.disk.is_off()
    }

    /// Waits until no client is connected, as after its machine was killed, and returns what its power cut did.
    /// `None` where there was no client since the last call. The image is now as the next boot finds it.
    pub fn wait_for_cut(&self) -> Result<Option<Cut>, ServerError> {
        let mut state = self.shared.lock();
        state.released = true;
        self.shared.changed.notify_all();
        while state.client.is_some() {
            self.shared.changed.wait(&mut state);
        }
        let last = state.cuts.pop();
        state.cuts.clear();
        last.transpose().map_err(ServerError::Survivors)
    }

    /// Cuts the disk's power: the client loses its connection.
    pub fn cut_power(&self) -> Result<Option<Cut>, ServerError> {
        if let Some(client) = &self.shared.lock().client {
            // It may be gone by itself.
            let _ = client.shutdown(Shutdown::Both);
        }
        self.wait_for_cut()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        // Ends the thread's wait for a client, whether or not the socket's file is still there.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        let _ = self.cut_power();
        let _ = std::fs::remove_file(&self.socket);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &UnixListener, shared: &Shared) {
    loop {
        let Ok((mut client, _)) = listener.accept() else { return };
        {
            let mut state = shared.lock();
            if state.stopped {
                return;
            }
            let Ok(copy) = client.try_clone() else { continue };
            (state.client, state.released) = (Some(copy), false);
        }
        // A client that is gone, or breaks the protocol, is a disk without power.
        let _ = serve_client(&mut client, shared);
        let mut state = shared.lock();
        let cut = state.disk.cut(shared.choice);
        state.cuts.push(cut);
        state.client = None;
        shared.changed.notify_all();
    }
}

fn serve_client(client: &mut UnixStream, shared: &Shared) -> io::Result<()> {
    let length = shared.lock().disk.length();
    if !protocol::handshake(client, length)? {
        return Ok(());
    }
    let with_disk = |work: &mut dyn FnMut(&mut Disk)| {
        let mut state = shared.lock();
        work(&mut state.disk);
        while state.disk.is_off() && !state.released {
            shared.changed.notify_all();
            shared.changed.wait(&mut state);
        }
    };
    while protocol::serve(client, with_disk)? {}
    Ok(())
}
