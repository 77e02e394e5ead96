//! Tag numbers, the ends of tags, and the tags of entries.

use std::{collections::BTreeSet, sync::Arc};

use bellwether::backend::{TagEnd, TagEnds, Tagged};

use crate::harness::*;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn tags_of(namespace: &str) -> Name {
    let namespace = Namespace::new(namespace).unwrap();
    Name::new(&namespace, Family::Tags, &Key::from("tags"), 512).unwrap()
}

async fn read(backend: &impl Store, name: &Name) -> Option<Entry> {
    backend.get(name).await.unwrap()
}

fn texts(tags: &[&str]) -> Vec<Arc<str>> {
    tags.iter().map(|tag| Arc::from(*tag)).collect()
}

fn tagged(entry: Entry, number: u64, tags: &[&str]) -> Entry {
    entry.with_tags(Tagged { number, tags: texts(tags) })
}

pub async fn each_end_of_a_tag_has_a_greater_number<H: FullHarness>(h: &H) {
    let ([here, there], tags) = ([h.backend(), h.backend()], tags_of("shop"));
    let mut last = here.tag_number(&tags).await.unwrap();
    assert!(last > 0);
    assert_eq!(there.tag_number(&tags).await.unwrap(), last);
    for tag in ["a", "b", "a", ""] {
        let number = here.end_tag(&tags, tag, TagEnd::Invalidated).await.unwrap();
        assert!(number > last, "{number} is not greater than {last}");
        assert_eq!(there.tag_number(&tags).await.unwrap(), number);
        last = number;
    }
}

pub async fn many_ends_at_once_have_numbers_of_their_own<H: FullHarness>(h: &H) {
    let backends = [h.backend(), h.backend()];
    let tags = tags_of("shop");
    let end = |at: usize| backends[at % 2].end_tag(&tags, "a", TagEnd::Invalidated);
    let numbers = join_all((0..50).map(end)).await.into_iter().map(Result::unwrap);
    let numbers: BTreeSet<u64> = numbers.collect();
    assert_eq!(numbers.len(), 50);
    let ends = backends[0].tag_ends(&tags, &texts(&["a"])).await.unwrap();
    assert_eq!(Some(ends[0].ended), numbers.last().copied());
}

pub async fn the_ends_of_tags_are_told_in_order<H: FullHarness>(h: &H) {
    let ([here, there], tags) = ([h.backend(), h.backend()], tags_of("shop"));
    let odd = ["", " ", "a{b}:c", "%7B", "}:", "ü\r\n", "a", "A", &"x".repeat(512)];
    let mut expected = Vec::new();
    for (at, tag) in odd.iter().enumerate() {
        let mut ends = TagEnds::default();
        if at % 2 == 0 {
            ends.ended = here.end_tag(&tags, tag, TagEnd::Invalidated).await.unwrap();
        }
        if at % 3 == 0 {
            ends.expired = here.end_tag(&tags, tag, TagEnd::Expired).await.unwrap();
        }
        expected.push(ends);
    }
    assert_eq!(there.tag_ends(&tags, &texts(&odd)).await.unwrap(), expected);
    assert_eq!(
        there.tag_ends(&tags_of("other"), &texts(&["a"])).await.unwrap(),
        [TagEnds::default()]
    );
}

pub async fn the_end_of_a_tag_outlives_each_entry<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let tags = tags_of("shop");
    let number = backend.end_tag(&tags, "a", TagEnd::Invalidated).await.unwrap();
    h.pass(29 * DAY).await;
    let ends = backend.tag_ends(&tags, &texts(&["a"])).await.unwrap();
    assert_eq!(ends[0].ended, number);
    let later = backend.end_tag(&tags, "b", TagEnd::Invalidated).await.unwrap();
    assert!(later > number);
    h.pass(3 * DAY).await;
    let ends = backend.tag_ends(&tags, &texts(&["a", "b"])).await.unwrap();
    assert_eq!((ends[0].ended, ends[1].ended), (0, later));
    h.pass(31 * DAY).await;
    assert!(backend.end_tag(&tags, "c", TagEnd::Invalidated).await.unwrap() > later);
}

pub async fn an_entry_keeps_its_tags<H: FullHarness>(h: &H) {
    let [here, there] = [h.backend(), h.backend()];
    for size in [0, 10, 30_000, 200_000] {
        let name = name(&format!("{size}"));
        let entry = value(&"x".repeat(size)).with_windows(Windows::fresh(TTL).error(TTL));
        let entry = tagged(entry, 1_700_000_000_000_000, &["a", "ü b", &"x".repeat(300)]);
        let load = claim(&name);
        let grant = begun(&here, &load).await;
        let mut changes = listen(&there, &name).await;
        let outcome = here.commit(&load, &grant, &entry, Some(TTL)).await.unwrap();
        assert_eq!(outcome, Committed::Stored);
        let expected = entry.clone().with_fence(grant.fence());
        match next(&mut changes).await {
            Change::Entry(pushed) => assert!(pushed == expected, "{size}"),
            change => assert!(matches!(change, Change::Announced(_)), "{size}"),
        }
        assert!(read(&there, &name).await == Some(expected.clone()), "{size}");
        assert!(there.claim(&claim(&name), 0).await.unwrap() == Claimed::Newer(expected), "{size}");
        let fence = edit(&there, &name, &Edit::Put(entry.clone(), TTL)).await;
        assert!(read(&here, &name).await == Some(entry.clone().with_fence(fence)), "{size}");
        let windows = Windows::fresh(TTL);
        let fence = edit(&here, &name, &Edit::Touch { windows, seen: 0 }).await;
        let touched = entry.with_windows(windows).with_fence(fence);
        assert!(read(&there, &name).await == Some(touched), "{size}");
    }
}

pub async fn an_entry_without_tags_has_none<H: FullHarness>(h: &H) {
    let backend = h.backend();
    put(&backend, &name("k"), "v").await;
    assert!(read(&backend, &name("k")).await.unwrap().tagged.is_none());
    let none = tagged(Entry::value(0, Duration::ZERO, Bytes::new()), 7, &[]);
    edit(&backend, &name("k"), &Edit::Put(none.clone(), TTL)).await;
    let found = read(&backend, &name("k")).await.unwrap().tagged.unwrap();
    assert_eq!((found.number, found.tags.len()), (7, 0));
}
