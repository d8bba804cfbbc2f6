use std::net::SocketAddr;

use cluster::{Mark, Told};
use lsm::{MemDisk, Options};

use super::*;
use crate::settings::members::Members;

fn open_db(disk: &MemDisk) -> Arc<Db> {
    Arc::new(Db::open(Arc::new(disk.clone()), Options::default()).unwrap())
}

fn listen(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// The members as `--cluster` lists them, this node being `http://h:1`.
fn listed(cluster: &str, replicas: u8) -> Membership {
    let members = Members::parse(Some(cluster), Some("http://h:1"), listen(1), replicas).unwrap();
    members.settle(listen(1), None, replicas).unwrap()
}

/// A node without `--cluster`, at this port, on what is in `db`.
fn alone(db: &Db, port: u16) -> Membership {
    let members = Members::parse(None, None, listen(port), 3).unwrap();
    members.settle(listen(port), kept_name(db).unwrap(), 3).unwrap()
}

const THREE: &str = "a=http://h:1,b=http://h:2,c=http://h:3";

/// Why a directory of a node that was part of `before` is refused as part of `now`.
fn refused(before: &Membership, now: &Membership) -> String {
    let db = open_db(&MemDisk::new());
    let made = Identity::open(&db, before, 5).unwrap().incarnation();
    let error = Identity::open(&db, now, 6).err().unwrap();
    assert!(error.contains("It was not changed") && !error.contains('\n'), "{error}");
    assert_eq!(Identity::open(&db, before, 7).unwrap().incarnation(), made, "it still opens");
    error
}

fn claim(incarnation: u64) -> Claim {
    let told = Told { life: 11, position: 12, late: incarnation / 2 };
    Claim { incarnation, told }
}

#[test]
fn what_is_made_once_stays() {
    let disk = MemDisk::new();
    let db = open_db(&disk);
    let first = Identity::open(&db, &listed(THREE, 3), 77).unwrap();
    assert_ne!(first.incarnation(), 0);
    assert_eq!((first.born(), first.standing()), (77, Standing::New));
    assert_eq!((first.known("b"), first.known("c")), (None, None));
    first.remember("b", &claim(5)).unwrap();
    first.remember("c", &claim(u64::MAX)).unwrap();
    first.remember("b", &claim(6)).unwrap();
    let (own, missed) = (NodeId(0), Missed::default());
    missed.mark(own, Mark { partition: Some(9), since: 4 });
    first.set_standing(Standing::Amnesiac, own, &missed).unwrap();
    first.set_standing(Standing::Member, own, &missed).unwrap();
    assert!(!missed.is_unkept(own));
    let (incarnation, cluster) = (first.incarnation(), first.cluster());
    drop(first);
    Arc::into_inner(db).unwrap().close().unwrap();

    let again = Identity::open(&open_db(&disk), &listed(THREE, 3), 99).unwrap();
    assert_eq!((again.incarnation(), again.cluster()), (incarnation, cluster));
    assert_eq!((again.born(), again.standing()), (77, Standing::Member));
    assert_eq!((again.known("b"), again.known("c")), (Some(claim(6)), Some(claim(u64::MAX))));
    again.remember("b", &claim(7)).unwrap();
    assert_eq!(again.known("b"), Some(claim(7)));
}

#[test]
fn a_directory_wiped_has_another_incarnation() {
    let open = || Identity::open(&open_db(&MemDisk::new()), &listed(THREE, 3), 0).unwrap();
    let (one, other) = (open(), open());
    assert_ne!(one.incarnation(), other.incarnation());
    assert_eq!(one.cluster(), other.cluster());
}

#[test]
fn addresses_may_change_and_the_list_be_in_another_order() {
    let db = open_db(&MemDisk::new());
    Identity::open(&db, &listed(THREE, 3), 0).unwrap();
    let moved = listed("c=http://i:3,b=http://i:2,a=http://h:1", 3);
    assert!(Identity::open(&db, &moved, 0).is_ok());
}

#[test]
fn another_topology_or_name_is_refused_with_what_differs() {
    let three = listed(THREE, 3);
    for (now, said) in [
        (listed("a=http://h:1,b=http://h:2", 3), "node c is in the data directory's list"),
        (listed(&format!("{THREE},d=http://h:4"), 3), "node d is in our list and not in"),
        (listed(THREE, 2), "replicas: 2 in our topology, 3 in the data directory's"),
        (listed(&THREE.replace("h:2", "h:2;zone=x"), 3), "node b has zone x in our list"),
        (listed(&THREE.replace("h:2", "h:2;weight=9"), 3), "node b has weight 9 in our list"),
        (listed("b=http://h:1,a=http://h:2,c=http://h:3", 3), "this is node b"),
        (listed("a=http://h:1", 3), "node b is in the data directory's list"),
        (alone(&open_db(&MemDisk::new()), 1), "more differences"),
    ] {
        let error = refused(&three, &now);
        assert!(error.contains(said), "{error}");
    }
    let error = refused(&listed("a=http://h:1", 3), &three);
    assert!(error.contains("node b is in our list and not in the data directory's"), "{error}");
}

#[test]
fn a_node_alone_may_move_and_change_its_copies() {
    let db = open_db(&MemDisk::new());
    let first = alone(&db, 4711);
    let made = Identity::open(&db, &first, 0).unwrap();
    assert_eq!(made.standing(), Standing::Member);
    let again = alone(&db, 4712);
    assert_eq!(again.name(), "http://127.0.0.1:4711", "its versions go on under one name");
    assert_eq!(Identity::open(&db, &again, 0).unwrap().incarnation(), made.incarnation());
    for named in [listed("a=http://h:1", 3), listed("a=http://h:1;zone=x", 1)] {
        assert!(Identity::open(&db, &named, 0).is_ok(), "it gets a name once");
    }
    let error = Identity::open(&db, &listed("b=http://h:1", 3), 0).err().unwrap();
    assert!(error.contains("this is node b, and it belongs to node a"), "{error}");
    let unsaid = alone(&db, 4713);
    assert_eq!(unsaid.name(), "a", "it keeps the name");
    assert!(Identity::open(&db, &unsaid, 0).is_ok());
    assert!(Identity::open(&db, &listed("b=http://h:1", 3), 0).is_err(), "for good");
}

#[test]
fn a_directory_of_an_earlier_release_is_adopted_by_a_node_alone() {
    let earlier = || {
        let db = open_db(&MemDisk::new());
        let mut batch = Batch::new();
        let version = Version { time: 1, origin: 1 };
        batch.put(Space::Node, BOUND_KEY, version, &[0; 8]).unwrap();
        db.commit(batch).unwrap();
        db
    };
    let db = earlier();
    let adopted = Identity::open(&db, &alone(&db, 1), 0).unwrap();
    assert_eq!(adopted.standing(), Standing::Member);
    let db = earlier();
    let error = Identity::open(&db, &listed(THREE, 3), 0).err().unwrap();
    assert!(error.contains("the data of one node alone, and we are 3"), "{error}");
}

#[test]
fn the_bytes_are_pinned() {
    let kept = Kept {
        standing: Standing::Amnesiac,
        named: true,
        cluster: 0x0102_0304_0506_0708,
        incarnation: 0x1112_1314_1516_1718,
        born: 0x2122_2324_2526_2728,
        digest: 0x3132_3334_3536_3738,
        name: "a".to_owned(),
        description: "text\n".to_owned(),
    };
    let mut bytes = vec![1, 2, 1, 0];
    for first in [0x01_u8, 0x11, 0x21, 0x31] {
        bytes.extend((first..first + 8).rev());
    }
    bytes.extend(b"\x01\x00atext\n");
    assert_eq!(kept.encode(), bytes);
    assert_eq!(Kept::decode(&bytes), Ok(kept));
    let peer = [1, 8, 7, 6, 5, 4, 3, 2, 1];
    let incarnation = 0x0102_0304_0506_0708;
    let earlier = Claim { incarnation, told: Told::default() };
    assert_eq!(format::decode_peer(&peer), Ok(earlier), "of an earlier release");
    let claim = Claim { incarnation, told: Told { life: 0x11, position: 0x12, late: 0x13 } };
    let mut peer = vec![2, 8, 7, 6, 5, 4, 3, 2, 1];
    for number in [0x11_u8, 0x12, 0x13] {
        peer.extend([number, 0, 0, 0, 0, 0, 0, 0]);
    }
    assert_eq!(format::encode_peer(&claim), peer);
    assert_eq!(format::decode_peer(&peer), Ok(claim));
}

#[test]
fn what_is_no_identity_is_told_from_a_newer_one() {
    let good = format::Kept::decode(&[&[1, 1, 0, 0][..], &[0; 34]].concat());
    assert!(good.is_ok(), "{good:?}");
    for damaged in [&[][..], &[1], &[1; 37], &[&[1, 4, 0, 0][..], &[0; 34]].concat(), &[1; 38]] {
        assert!(Kept::decode(damaged).unwrap_err().contains("damaged"));
    }
    for damaged in [&[][..], &[1], &[1; 10]] {
        assert!(format::decode_peer(damaged).unwrap_err().contains("damaged"));
    }
    assert!(Kept::decode(&[2; 38]).unwrap_err().contains("upgrade"));
    assert!(format::decode_peer(&[3; 9]).unwrap_err().contains("upgrade"));
}
