//! Slow readers of one body that is not stored: how long the others wait for them, and how much is
//! kept for them.

use std::io;

use bellwether::layer::{BodyError, ResponseBody};

use super::prelude::*;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Counts the bytes of an origin that are in memory.
#[derive(Clone, Default)]
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn piece(&self, size: usize) -> Bytes {
        self.0.fetch_add(size, Ordering::SeqCst);
        Bytes::from_owner(Piece { bytes: vec![b'x'; size], alive: self.clone() })
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

struct Piece {
    bytes: Vec<u8>,
    alive: Alive,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.alive.0.fetch_sub(self.bytes.len(), Ordering::SeqCst);
    }
}

/// Returns an origin whose bodies are of so many pieces, with a pause before each. Their length is
/// not announced.
fn pieces(count: usize, size: usize, pause: Duration) -> (Inner, Alive, Calls) {
    let alive = Alive::default();
    let counted = alive.clone();
    let (inner, calls) = origin(move |_, _| {
        let alive = counted.clone();
        let body = futures_util::stream::unfold(0, move |at| {
            let alive = alive.clone();
            async move {
                if at == count {
                    return None;
                }
                if !pause.is_zero() {
                    sleep(pause).await;
                }
                Some((Ok::<_, io::Error>(alive.piece(size)), at + 1))
            }
        });
        reply(200, &[("cache-control", "max-age=60")], Body::from_stream(body))
    });
    (inner, alive, calls)
}

/// What became of a reader.
#[derive(Debug)]
struct Ended {
    length: usize,
    took: Duration,
    error: Option<BodyError>,
}

/// Reads a body at a pace in bytes a second.
async fn read_at(mut body: ResponseBody<Body>, pace: usize) -> Ended {
    let begun = Instant::now();
    let mut length = 0;
    let error = loop {
        match body.frame().await {
            None => break None,
            Some(Err(error)) => break Some(error),
            Some(Ok(frame)) => {
                let size = frame.into_data().unwrap().len();
                length += size;
                sleep(Duration::from_secs_f64(size as f64 / pace as f64)).await;
            }
        }
    };
    Ended { length, took: begun.elapsed(), error }
}

async fn open(service: &Layered, path: &str) -> ResponseBody<Body> {
    service.clone().oneshot(get(path)).await.unwrap().into_body()
}

/// Reads one body at these paces at once.
async fn read_all<const N: usize>(service: &Layered, paces: [usize; N]) -> Vec<Ended> {
    let readers = paces.map(|pace| {
        let service = service.clone();
        spawn(async move { read_at(open(&service, "/").await, pace).await })
    });
    all(readers).await
}

/// Three of them broke at 9 to 13 MB.
#[tokio::test(start_paused = true)]
async fn readers_that_are_at_most_twice_as_slow_get_the_whole_body() {
    let (inner, ..) = pieces(176, 256 * KIB, Duration::ZERO);
    let paces = [7, 6, 5, 4].map(|pace| pace * 1_000_000);
    for (ended, pace) in read_all(&layered(&inner), paces).await.into_iter().zip(paces) {
        let alone = Duration::from_secs_f64((44 * MIB) as f64 / pace as f64);
        assert!(ended.error.is_none() && ended.length == 44 * MIB, "{pace}: {ended:?}");
        assert!(ended.took <= 2 * alone, "{pace}: {ended:?}");
    }
}

/// One has stopped, and one reads 256 KiB a second.
#[tokio::test(start_paused = true)]
async fn much_slower_readers_hold_the_others_to_half_of_their_pace() {
    let (inner, ..) = pieces(176, 256 * KIB, Duration::ZERO);
    for slow in [1, 256 * KIB] {
        let paces = [slow, 5_000_000, 5_000_000, 5_000_000];
        let ended = read_all(&layered(&inner), paces).await;
        let alone = Duration::from_secs_f64((44 * MIB) as f64 / 5_000_000.0);
        for ended in &ended[1..] {
            assert!(ended.error.is_none() && ended.length == 44 * MIB, "{slow}: {ended:?}");
            assert!(ended.took <= 2 * alone + DELAY, "{slow}: {ended:?}");
        }
        assert!(matches!(ended[0].error, Some(BodyError::Slow)), "{slow}: {:?}", ended[0]);
    }
}

/// No reader is slow that has no other beside it, or that has read all that has arrived.
#[tokio::test(start_paused = true)]
async fn readers_of_a_slow_service_and_a_lone_slow_reader_get_the_whole_body() {
    let (inner, ..) = pieces(32, 64 * KIB, Duration::ZERO);
    let ended = read_all(&layered(&inner), [20_000]).await;
    assert!(ended[0].error.is_none() && ended[0].length == 2 * MIB, "{ended:?}");
    let (inner, ..) = pieces(60, KIB, SECOND);
    let service = layer().body_limit(5 * SECOND).body_backlog(0).layer_backlog(0).layer(inner);
    for ended in read_all(&service, [1_000_000; 2]).await {
        assert!(ended.error.is_none() && ended.length == 60 * KIB, "{ended:?}");
    }
}

/// A reader may have read all within a millisecond. The pause of another one ends nobody.
#[tokio::test(start_paused = true)]
async fn a_fast_reader_waits_for_a_second_at_least() {
    for (pause, is_whole) in [(SECOND - DELAY, true), (SECOND + DELAY, false)] {
        let (inner, ..) = pieces(64, 64 * KIB, Duration::ZERO);
        let service = layer().body_backlog(64 * KIB).layer(inner);
        let fast = spawn(read_all_of(service.clone()));
        let mut slow = open(&service, "/").await;
        let first = slow.frame().await.unwrap().unwrap().into_data().unwrap().len();
        sleep(pause).await;
        let rest = read_at(slow, usize::MAX).await;
        assert_eq!(rest.error.is_none() && first + rest.length == 4 * MIB, is_whole, "{rest:?}");
        assert_eq!(fast.await.unwrap().length, 4 * MIB);
    }
}

async fn read_all_of(service: Layered) -> Ended {
    read_at(open(&service, "/").await, usize::MAX).await
}

/// Clients open a thousand bodies. Of each, one reads a part and stops, and another one has stopped
/// before. They take no memory beyond the limit of the layer, and no reader that goes on ends.
#[tokio::test(start_paused = true)]
async fn clients_that_stop_reading_a_thousand_bodies_take_nothing_from_others() {
    let (inner, alive, calls) = pieces(704, 64 * KIB, Duration::ZERO);
    let layer = layer_of(builder().max_value(256 * KIB));
    let service = layer.body_backlog(512 * KIB).layer_backlog(4 * MIB).layer(inner);
    let mut stopped = Vec::new();
    for at in 0..1000 {
        let path = format!("/{at}");
        let (mut fast, slow) = tokio::join!(open(&service, &path), open(&service, &path));
        for _ in 0..6 {
            fast.frame().await.unwrap().unwrap();
        }
        stopped.push((fast, slow));
    }
    assert_eq!(calls.count(), 1000);
    sleep(SECOND).await;
    // Beside the limit there is a piece or two of each body that its reader has not taken.
    let most = 4 * MIB + 1000 * 2 * 64 * KIB;
    assert!(alive.count() <= most, "{} bytes", alive.count());
    let paces = [7, 6, 5, 4].map(|pace| pace * 1_000_000);
    for ended in read_all(&service, paces).await {
        assert!(ended.error.is_none() && ended.length == 44 * MIB, "{ended:?}");
    }
    let mut kept = 0;
    for (_, slow) in &mut stopped {
        match slow.frame().await.unwrap() {
            Ok(_) => kept += 1,
            Err(error) => assert!(matches!(error, BodyError::Slow), "{error}"),
        }
    }
    assert!(kept <= 12, "{kept} readers were kept");
    drop(stopped);
    sleep(SECOND).await;
    assert_eq!(alive.count(), 0);
}
